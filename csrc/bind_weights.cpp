// Weights as Python gives them, and how much memory they take once they are packed.
#include "bind.h"

namespace trimaran {
namespace {

size_t padded_matrix_bytes(const std::string& format, int n, int k, bool paired, bool head) {
  return Arena::padded(head ? planes_bytes(n, k) : matrix_bytes(weight_format(format), n, k, paired));
}

size_t all_outlier_rows(int matrices, int n, bool paired, const Array<int32_t, 1>& starts) {
  if (starts.shape(0) != size_t(matrices) * n + 1) throw std::invalid_argument("starts are one more than rows");
  const int strips = matrix_strips(n, paired);
  size_t rows = 0;
  for (int i = 0; i < matrices * strips; i++) {
    rows += outlier_rows(starts.data() + size_t(i / strips) * n, n, paired, i % strips);
  }
  return rows;
}

size_t padded_outlier_bytes(int matrices, int n, bool paired, const Array<int32_t, 1>& starts) {
  const size_t rows = all_outlier_rows(matrices, n, paired, starts);
  const int strips = matrix_strips(n, paired);
  return Arena::padded((size_t(matrices) * strips + 1) * sizeof(uint32_t)) + Arena::padded(rows * sizeof(OutlierRow));
}

using OptionalHalves = OptionalArray<uint16_t, 2>;

// Canonical arrays of `count` matrices of n rows, one under the other, as a view of the first.
void construct_weight(WeightView* self, const std::string& format, int count, int n, int k,
                      const Array<uint8_t, 2>& data, const OptionalHalves& scale, const OptionalHalves& minimum,
                      const OptionalArray<float, 2>& block_scale, const OptionalArray<int8_t, 2>& codebook,
                      const OptionalArray<int32_t, 1>& outlier_starts, const OptionalArray<int32_t, 1>& outlier_columns,
                      const OptionalArray<uint16_t, 1>& outlier_values) {
  const WeightFormat f = weight_format(format);
  const size_t rows = size_t(count) * n;
  const auto fits = [&](const auto& a, size_t width) {  // 0: there must be none
    return a.has_value() == (width > 0) && (!a || (a->shape(0) == rows && a->shape(1) == width));
  };
  WeightView view{};
  view.format = f, view.n = n, view.k = k, view.count = count, view.data = data.data();
  const size_t groups = k / kGroup, terms = is_codebook(f) ? 1 : has_group_scales(f) ? groups : 0;
  const bool sparse = view.sparse = outlier_starts.has_value();
  bool good = data.shape(0) == rows && data.shape(1) == view.data_row_bytes() && fits(scale, terms) &&
              fits(minimum, f == WeightFormat::kInt4z ? groups : 0) &&
              fits(block_scale, f == WeightFormat::kFp8 ? shared_bytes(f, k) / 4 : 0) && fits(codebook, levels_of(f)) &&
              outlier_columns.has_value() == sparse && outlier_values.has_value() == sparse;
  if (good && sparse) {
    const int32_t *starts = outlier_starts->data(), *columns = outlier_columns->data();
    const size_t entries = outlier_columns->shape(0);
    good = is_codebook(f) && outlier_starts->shape(0) == rows + 1 && starts[0] == 0 &&
           size_t(starts[rows]) == entries && outlier_values->shape(0) == entries && k <= kMostOutlierInputs;
    for (size_t r = 0; good && r < rows; r++) good = starts[r] <= starts[r + 1];
    for (size_t i = 0; good && i < entries; i++) good = columns[i] >= 0 && columns[i] < k;
    view.outlier_starts = starts, view.outlier_columns = columns, view.outlier_values = outlier_values->data();
  }
  if (!good) {
    throw std::invalid_argument("arrays do not match a " + format + " matrix of " + std::to_string(rows) + " x " +
                                std::to_string(k));
  }
  if (scale) view.scale = scale->data();
  if (minimum) view.minimum = minimum->data();
  if (block_scale) view.block_scale = block_scale->data();
  if (codebook) view.codebook = codebook->data();
  new (self) WeightView(view);
}

WeightView packed_weight(const std::string& format, int count, int n, int k, std::optional<size_t> outlier_rows) {
  WeightView view{};
  view.format = weight_format(format), view.n = n, view.k = k, view.count = count;
  view.sparse = outlier_rows.has_value(), view.packed_outlier_rows = outlier_rows.value_or(0);
  return view;
}

}  // namespace

void bind_weights(nb::module_& m) {
  m.def("matrix_bytes", &padded_matrix_bytes, nb::arg("fmt"), nb::arg("n"), nb::arg("k"), nb::arg("paired"),
        nb::arg("head"), "Bytes that a packed matrix takes of a program's weight memory.");
  m.def("outlier_rows", &all_outlier_rows, nb::arg("matrices"), nb::arg("n"), nb::arg("paired"),
        nb::arg("starts").noconvert(), "Rows of outliers that some matrices need in all strips.");
  m.def("outlier_bytes", &padded_outlier_bytes, nb::arg("matrices"), nb::arg("n"), nb::arg("paired"),
        nb::arg("starts").noconvert(), "Bytes that the outliers beside the codebooks of some matrices take of it.");
  nb::class_<WeightView>(m, "Weight", "Canonical arrays of `count` matrices n x k.")
      .def("__init__", &construct_weight, nb::kw_only(), nb::arg("fmt"), nb::arg("count"), nb::arg("n"), nb::arg("k"),
           nb::arg("data").noconvert(), nb::arg("scale").noconvert().none() = nb::none(),
           nb::arg("minimum").noconvert().none() = nb::none(), nb::arg("block_scale").noconvert().none() = nb::none(),
           nb::arg("codebook").noconvert().none() = nb::none(),
           nb::arg("outlier_starts").noconvert().none() = nb::none(),
           nb::arg("outlier_columns").noconvert().none() = nb::none(),
           nb::arg("outlier_values").noconvert().none() = nb::none(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(),
           nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>(), nb::keep_alive<1, 10>(), nb::keep_alive<1, 11>(),
           nb::keep_alive<1, 12>(), nb::keep_alive<1, 13>())  // the arrays
      .def_static("packed", &packed_weight, nb::kw_only(), nb::arg("fmt"), nb::arg("count"), nb::arg("n"), nb::arg("k"),
                  nb::arg("outlier_rows").none(), "One that is packed already, for a program that was given `packed`.");
}

}  // namespace trimaran
