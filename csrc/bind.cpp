// The Python module: registers, nothing else. Array types state dtype, rank and contiguity; nothing is converted.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu.h"
#include "program.h"

namespace nb = nanobind;
using namespace trimaran;

namespace {

template <class T, int Rank>
using Array = nb::ndarray<const T, nb::ndim<Rank>, nb::c_contig, nb::device::cpu>;
template <class T, int Rank>
using OptionalArray = std::optional<Array<T, Rank>>;

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const Kernels* k : usable_kernels()) names.emplace_back(k->name);
  return names;
}

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

void construct(Program* self, const std::string& isa, int threads, int vocab, int result, int max_rows,
               int max_sequences, int page_size, int max_positions, bool int8_activations, const std::string& kv,
               size_t weight_bytes, bool share_prefixes, const OptionalArray<uint8_t, 1>& packed) {
  const StepLimits limits{vocab, result, max_rows, max_sequences, page_size, max_positions};
  if (packed && packed->shape(0) != weight_bytes) throw std::invalid_argument("packed weights are of another size");
  const uint8_t* lent = packed ? packed->data() : nullptr;
  new (self) Program({isa, threads, limits, int8_activations, kv_format(kv), share_prefixes, weight_bytes, lent});
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

// Only a program whose weights are packed takes a matrix without numbers.
void check_numbers(const Program& p, const WeightView& view) {
  if (!view.data && !p.options().packed) throw std::invalid_argument("a weight without numbers");
}

int add_matrix(Program& p, const WeightView& view, bool paired, bool head) {
  check_numbers(p, view);
  if (view.count != 1) throw std::invalid_argument("several matrices are a stack of experts");
  if (head && view.format != WeightFormat::kInt8) throw std::invalid_argument("an output head in two planes is int8");
  const nb::gil_scoped_release release;
  return head ? p.add_head(view) : p.add_matrix(view, paired);
}

int add_experts(Program& p, const WeightView& view, bool paired) {
  check_numbers(p, view);
  const nb::gil_scoped_release release;
  return p.add_experts(view, paired);
}

void add_route(Program& p, int out, int logits, int bias, int experts, int top_k, const std::string& scoring,
               int groups, int top_groups, bool normalise, float epsilon, float factor) {
  if (scoring != "softmax" && scoring != "sigmoid") throw std::invalid_argument("unknown scoring '" + scoring + "'");
  if (top_k > kMostRoutes || groups > kMostRoutes) throw std::invalid_argument("too many experts of a row, or groups");
  p.add_op(RouteOp{
      out, logits, bias, {experts, top_k, scoring == "softmax", groups, top_groups, normalise, epsilon, factor}});
}

void add_experts_op(Program& p, int out, int x, int routes, int gate_up, int down, int top_k, int norm, float eps,
                    int residual) {
  p.add_op(ExpertsOp{out, x, routes, gate_up, down, top_k, norm, eps, residual});
}

RowIndex row_index(const std::string& name) {
  if (name == "token") return RowIndex::kToken;
  if (name == "position") return RowIndex::kPosition;
  if (name == "first") return RowIndex::kFirst;
  throw std::invalid_argument("unknown index '" + name + "'");
}

Epilogue epilogue_named(const std::string& name) {
  if (name == "store") return Epilogue::kStore;
  if (name == "add") return Epilogue::kAdd;
  if (name == "swiglu") return Epilogue::kSwiglu;
  if (name == "geglu") return Epilogue::kGeglu;
  if (name == "logits") return Epilogue::kLogits;
  throw std::invalid_argument("unknown epilogue '" + name + "'");
}

void add_linear(Program& p, int out, int x, int weight, int bias, int norm, float eps, bool gather,
                const std::string& epilogue, int residual, bool wide, bool reuse) {
  p.add_op(LinearOp{out, x, weight, bias, norm, eps, gather, epilogue_named(epilogue), residual, wide, reuse});
}

using EntryTags = std::pair<Array<int64_t, 2>, Array<uint64_t, 2>>;

void tag_pages(Program& p, int group, const Array<int64_t, 1>& tags, const Array<uint64_t, 1>& owners) {
  p.tag_pages(group, tags.shape(0) ? PageTags{tags.data(), owners.data()} : PageTags{});
}

nb::tuple begin(Program& p, const Array<int32_t, 1>& tokens, const Array<int32_t, 1>& starts,
                const Array<int32_t, 1>& contexts, const Array<int32_t, 1>& slots,
                const std::vector<Array<int32_t, 2>>& page_tables, const std::vector<EntryTags>& expected,
                const Array<uint64_t, 1>& readers, const Array<int32_t, 1>& logits_rows, bool want_logits) {
  if (starts.shape(0) != contexts.shape(0) + 1 || slots.shape(0) != contexts.shape(0)) {
    throw std::invalid_argument("starts must have one entry more than contexts, slots as many");
  }
  if (!expected.empty() && readers.shape(0) != contexts.shape(0)) {
    throw std::invalid_argument("readers must have as many entries as contexts");
  }
  std::vector<PageTable> tables;
  for (const auto& t : page_tables) tables.push_back({t.data(), int(t.shape(0)), int(t.shape(1))});
  std::vector<PageTags> entries;
  for (size_t g = 0; g < expected.size(); g++) {
    const auto& [tags, owners] = expected[g];
    for (int d = 0; d < 2; d++) {
      if (g >= page_tables.size() || tags.shape(d) != page_tables[g].shape(d) || owners.shape(d) != tags.shape(d)) {
        throw std::invalid_argument("what is expected of pages must have the shape of their table");
      }
    }
    entries.push_back({tags.data(), owners.data()});
  }
  const StepArrays arrays{tokens.data(),
                          int(tokens.shape(0)),
                          starts.data(),
                          contexts.data(),
                          slots.data(),
                          int(contexts.shape(0)),
                          std::move(tables),
                          std::move(entries),
                          readers.data(),
                          logits_rows.data(),
                          int(logits_rows.shape(0))};
  p.begin(arrays, want_logits);
  return nb::tuple(nb::cast(p.faulty()));
}

void finish_step(Program& p) {
  const nb::gil_scoped_release release;
  p.finish_step();
}

using Bytes = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<int32_t> pages_of(const Array<int32_t, 1>& pages, size_t rows) {
  if (pages.shape(0) != rows) throw std::invalid_argument("pages and rows of bytes must be as many");
  return {pages.data(), pages.data() + rows};
}

void export_pages(Program& p, int group, const Array<int32_t, 1>& pages, const std::string& format, const Bytes& out) {
  const std::vector<int32_t> numbers = pages_of(pages, out.shape(0));
  const KvFormat to = kv_format(format);
  if (out.shape(1) != p.page_bytes(group, to)) throw std::invalid_argument("rows are not as long as pages");
  const nb::gil_scoped_release release;
  p.export_pages(group, numbers, to, out.data());
}

void import_pages(Program& p, int group, const Array<int32_t, 1>& pages, const Array<uint8_t, 2>& data) {
  const std::vector<int32_t> numbers = pages_of(pages, data.shape(0));
  if (data.shape(1) != p.page_bytes(group, p.options().kv_format)) {
    throw std::invalid_argument("rows are not as long as pages");
  }
  const nb::gil_scoped_release release;
  p.import_pages(group, numbers, data.data());
}

void construct_sampler(Sampler* self, bool greedy, float sharpness, int top_k, double top_p, float min_p,
                       float repetition, float presence, float frequency, int64_t first_stop,
                       std::vector<int32_t> stops, std::vector<int32_t> bias_ids, std::vector<float> bias, int logprobs,
                       uint64_t key, const std::vector<int32_t>& prompt) {
  if (bias.size() != bias_ids.size()) throw std::invalid_argument("bias and bias_ids must be as many");
  if (!(sharpness >= 0 && sharpness <= 1e30f && top_p > 0 && min_p >= 0 && min_p <= 1)) {
    throw std::invalid_argument("sharpness, top_p or min_p is out of range");  // no token would have a weight
  }
  new (self) Sampler({greedy, sharpness, top_k, top_p, min_p, repetition, presence, frequency, first_stop,
                      std::move(stops), std::move(bias_ids), std::move(bias), logprobs, key},
                     prompt);
}

// A token for each row, and its log-probability and the likeliest tokens where a sampler asks for them.
nb::list choose(Program& p, const std::vector<Sampler*>& samplers, const std::vector<int>& rows,
                const std::vector<int64_t>& positions, const Array<uint32_t, 2>& masks,
                const std::vector<int>& masked) {
  if (samplers.size() != rows.size() || samplers.size() != positions.size()) {
    throw std::invalid_argument("samplers, rows and positions must be as many");
  }
  if (!masked.empty() && masked.size() != rows.size()) throw std::invalid_argument("masked and rows must be as many");
  const int vocab = p.options().limits.vocab;
  if (!masked.empty() && masks.shape(1) != size_t((vocab + 31) / 32)) {
    throw std::invalid_argument("masks do not have a bit for each token");
  }
  std::vector<Program::Asked> asked;
  for (size_t i = 0; i < rows.size(); i++) {
    if (rows[i] < 0 || rows[i] >= p.options().limits.max_sequences) throw std::invalid_argument("a row out of range");
    if (!samplers[i]) throw std::invalid_argument("a sampler that is None");
    if (!samplers[i]->fits(vocab)) throw std::invalid_argument("a sampler with ids out of range");
    const int mask = masked.empty() ? -1 : masked[i];
    if (mask < -1 || mask >= int(masks.shape(0))) throw std::invalid_argument("a mask out of range");
    asked.push_back(
        {samplers[i], rows[i], positions[i], mask < 0 ? nullptr : masks.data() + size_t(mask) * masks.shape(1)});
  }
  std::vector<Choice> choices;
  {
    const nb::gil_scoped_release release;
    p.choose(asked, choices);
  }
  nb::list result;
  for (size_t i = 0; i < choices.size(); i++) {
    const Choice& c = choices[i];
    if (samplers[i]->options.logprobs < 0 || c.token < 0) {
      result.append(c.token);
      continue;
    }
    nb::list top;
    for (const Likely& l : c.top) top.append(nb::make_tuple(l.id, l.logprob));
    result.append(nb::make_tuple(c.token, c.logprob, top));
  }
  return result;
}

auto profile_view(Program& p) {
  const std::vector<double>& seconds = p.profile();
  return nb::ndarray<nb::numpy, const double, nb::ndim<1>>(seconds.data(), {seconds.size()});
}

auto weights_view(const Program& p) {
  return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(p.weights(), {p.weight_bytes()});
}

auto greedy_view(const Program& p) {
  return nb::ndarray<nb::numpy, const int32_t, nb::ndim<1>>(p.greedy(), {size_t(p.options().limits.max_sequences)});
}

auto logits_view(Program& p) {  // writable: samplers work in place, nobody reads it again
  return nb::ndarray<nb::numpy, float, nb::ndim<2>>(
      p.logits(), {size_t(p.options().limits.max_sequences), size_t(p.logits_stride())});
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Trimaran's CPU executor.";
  m.attr("GROUP") = kGroup;
  m.attr("STRIP") = kStrip;
  m.attr("PACKING_VERSION") = kPackingVersion;
  m.def("usable_isas", &isa_names, "Instruction sets of this build that this processor runs, best first.");
  m.def(
      "row_bytes", [](const std::string& f, int k) { return row_bytes(weight_format(f), k); }, nb::arg("fmt"),
      nb::arg("k"), "Bytes of one output of a matrix with k inputs.");
  m.def(
      "kv_token_bytes", [](const std::string& f, int d) { return kv_token_bytes(kv_format(f), d); }, nb::arg("fmt"),
      nb::arg("head_dim"), "Bytes of one token's key and value of one kv head.");
  m.def("matrix_bytes", &padded_matrix_bytes, nb::arg("fmt"), nb::arg("n"), nb::arg("k"), nb::arg("paired"),
        nb::arg("head"), "Bytes that a packed matrix takes of a program's weight memory.");
  m.def("outlier_rows", &all_outlier_rows, nb::arg("matrices"), nb::arg("n"), nb::arg("paired"),
        nb::arg("starts").noconvert(), "Rows of outliers that some matrices need in all strips.");
  m.def("outlier_bytes", &padded_outlier_bytes, nb::arg("matrices"), nb::arg("n"), nb::arg("paired"),
        nb::arg("starts").noconvert(), "Bytes that the outliers beside the codebooks of some matrices take of it.");

  nb::class_<Sampler>(m, "Sampler", "What one request asks of the choice of its tokens, and its history.")
      .def("__init__", &construct_sampler, nb::kw_only(), nb::arg("greedy"), nb::arg("sharpness"), nb::arg("top_k"),
           nb::arg("top_p"), nb::arg("min_p"), nb::arg("repetition"), nb::arg("presence"), nb::arg("frequency"),
           nb::arg("first_stop"), nb::arg("stops"), nb::arg("bias_ids"), nb::arg("bias"), nb::arg("logprobs"),
           nb::arg("key"), nb::arg("prompt"))
      .def(
          "note",
          [](Sampler& sampler, int32_t token) {
            if (sampler.penalises) sampler.history.add(token);
          },
          nb::arg("token"), "Takes note of a token of the output that another sampler has chosen.");

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
  nb::class_<HeadNormOp>(m, "HeadNorm", "RMS norm of queries or keys; weight -1: none.")
      .def(nb::init<int, float, bool>(), nb::arg("weight"), nb::arg("eps"), nb::arg("whole"));
  nb::class_<Program>(m, "Program", "Buffers, packed weights and ops, built once and run once per step.")
      .def("__init__", &construct, nb::kw_only(), nb::arg("isa"), nb::arg("threads"), nb::arg("vocab"),
           nb::arg("result"), nb::arg("max_rows"), nb::arg("max_sequences"), nb::arg("page_size"),
           nb::arg("max_positions"), nb::arg("int8_activations"), nb::arg("kv_format"), nb::arg("weight_bytes"),
           nb::arg("share_prefixes") = true, nb::arg("packed").noconvert().none() = nb::none(), nb::keep_alive<1, 14>())
      .def("add_group", &Program::add_group, nb::arg("num_pages"), nb::arg("window"))
      .def("tag_pages", &tag_pages, nb::arg("group"), nb::arg("tags").noconvert(), nb::arg("owners").noconvert(),
           "Steps say from now on what they expect of the group's pages; the arrays must outlive the program. "
           "Empty ones: they say nothing.")
      .def("add_heads_cache", &Program::add_heads_cache, nb::arg("group"), nb::arg("layers"), nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("wide"))
      .def(
          "set_scales",
          [](Program& p, int cache, const std::string& format, const Array<float, 3>& scales) {
            p.set_scales(cache, kv_format(format), scales.data());
          },
          nb::arg("cache"), nb::arg("kv_format"), nb::arg("scales").noconvert(),
          "Scales of a static format, [2, layers, kv_heads]: of keys, then of values.")
      .def("add_latent_cache", &Program::add_latent_cache, nb::arg("group"), nb::arg("layers"), nb::arg("latent"),
           nb::arg("rope"))
      .def("add_index_cache", &Program::add_index_cache, nb::arg("group"), nb::arg("layers"), nb::arg("dim"))
      .def("add_buffer", &Program::add_buffer, nb::arg("width"), nb::arg("logits_rows"))
      .def("add_matrix", &add_matrix, nb::arg("weight"), nb::arg("paired"), nb::arg("head"))
      .def(
          "add_vector",
          [](Program& p, const Array<float, 1>& v, bool paired) {
            return p.add_vector(v.data(), int(v.shape(0)), paired);
          },
          nb::arg("data").noconvert(), nb::arg("paired"))
      .def(
          "add_rope",
          [](Program& p, const Array<float, 2>& cos, const Array<float, 2>& sin, const OptionalArray<float, 1>& q) {
            return p.add_rope(cos.data(), sin.data(), q ? q->data() : nullptr, int(cos.shape(0)),
                              2 * int(cos.shape(1)));
          },
          nb::arg("cos").noconvert(), nb::arg("sin").noconvert(), nb::arg("query_scale").noconvert().none())
      .def("add_experts", &add_experts, nb::arg("weight"), nb::arg("paired"),
           "A matrix for each expert, one under the other.")
      .def(
          "embed",
          [](Program& p, int out, int weight, float scale, const std::string& index) {
            p.add_op(EmbedOp{out, weight, scale, row_index(index)});
          },
          nb::arg("out"), nb::arg("weight"), nb::arg("scale"), nb::arg("index"))
      .def(
          "rms_norm", [](Program& p, int out, int x, int weight, float eps) { p.add_op(NormOp{out, x, weight, eps}); },
          nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"))
      .def(
          "layer_norm",
          [](Program& p, int out, int x, int weight, int bias, float eps) {
            p.add_op(LayerNormOp{out, x, weight, bias, eps});
          },
          nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("bias"), nb::arg("eps"))
      .def("linear", &add_linear, nb::kw_only(), nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("bias"),
           nb::arg("norm"), nb::arg("eps"), nb::arg("gather"), nb::arg("epilogue"), nb::arg("residual"),
           nb::arg("wide"), nb::arg("reuse"))
      .def(
          "attention",
          [](Program& p, int out, int qkv, int cache, int layer, int heads, int rope, float scale,
             const HeadNormOp& q_norm, const HeadNormOp& k_norm, bool causal) {
            p.add_op(AttentionOp{out, qkv, cache, layer, heads, rope, scale, q_norm, k_norm, causal});
          },
          nb::kw_only(), nb::arg("out"), nb::arg("qkv"), nb::arg("cache"), nb::arg("layer"), nb::arg("heads"),
          nb::arg("rope"), nb::arg("scale"), nb::arg("q_norm"), nb::arg("k_norm"), nb::arg("causal"))
      .def("route", &add_route, nb::kw_only(), nb::arg("out"), nb::arg("logits"), nb::arg("bias"), nb::arg("experts"),
           nb::arg("top_k"), nb::arg("scoring"), nb::arg("groups"), nb::arg("top_groups"), nb::arg("normalise"),
           nb::arg("epsilon"), nb::arg("factor"))
      .def("experts", &add_experts_op, nb::kw_only(), nb::arg("out"), nb::arg("x"), nb::arg("routes"),
           nb::arg("gate_up"), nb::arg("down"), nb::arg("top_k"), nb::arg("norm"), nb::arg("eps"), nb::arg("residual"))
      .def(
          "head_linear", [](Program& p, int out, int x, int weights) { p.add_op(HeadLinearOp{out, x, weights}); },
          nb::arg("out"), nb::arg("x"), nb::arg("weights"))
      .def(
          "latent_attention",
          [](Program& p, int out, int q_latent, int q, int kv, int selected, int cache, int layer, int heads,
             int latent, int rope, int norm, float scale, float eps) {
            p.add_op(LatentOp{out, q_latent, q, kv, selected, cache, layer, heads, latent, rope, norm, scale, eps});
          },
          nb::kw_only(), nb::arg("out"), nb::arg("q_latent"), nb::arg("q"), nb::arg("kv"), nb::arg("selected"),
          nb::arg("cache"), nb::arg("layer"), nb::arg("heads"), nb::arg("latent"), nb::arg("rope"), nb::arg("norm"),
          nb::arg("scale"), nb::arg("eps"))
      .def(
          "select_tokens",
          [](Program& p, int out, int q, int k, int weights, int cache, int layer, int heads, int rope, int norm,
             int norm_bias,
             float eps) { p.add_op(SelectOp{out, q, k, weights, cache, layer, heads, rope, norm, norm_bias, eps}); },
          nb::kw_only(), nb::arg("out"), nb::arg("q"), nb::arg("k"), nb::arg("weights"), nb::arg("cache"),
          nb::arg("layer"), nb::arg("heads"), nb::arg("rope"), nb::arg("norm"), nb::arg("norm_bias"), nb::arg("eps"))
      .def(
          "glu",
          [](Program& p, int out, int gate_up, const std::string& kind) {
            p.add_op(GluOp{out, gate_up, epilogue_named(kind)});
          },
          nb::arg("out"), nb::arg("gate_up"), nb::arg("kind"))
      .def(
          "gelu", [](Program& p, int out, int x) { p.add_op(GeluOp{out, x}); }, nb::arg("out"), nb::arg("x"))
      .def(
          "add", [](Program& p, int out, int a, int b) { p.add_op(AddOp{out, a, b}); }, nb::arg("out"), nb::arg("a"),
          nb::arg("b"))
      .def(
          "take_rows", [](Program& p, int out, int x) { p.add_op(TakeRowsOp{out, x}); }, nb::arg("out"), nb::arg("x"))
      .def(
          "mean_rows", [](Program& p, int out, int x) { p.add_op(MeanRowsOp{out, x}); }, nb::arg("out"), nb::arg("x"))
      .def(
          "logits", [](Program& p, int x) { p.add_op(LogitsOp{x}); }, nb::arg("x"))
      .def("finish", &Program::finish, "Allocates buffers and pages; call once, after everything was added.")
      .def("pin_threads", &Program::pin_threads, nb::arg("cores"),
           "Ties each thread but the caller's to one of these cores, the first of which is left to the caller.")
      .def("begin", &begin, nb::arg("tokens").noconvert(), nb::arg("starts").noconvert(),
           nb::arg("contexts").noconvert(), nb::arg("slots").noconvert(), nb::arg("page_tables").noconvert(),
           nb::arg("expected").noconvert(), nb::arg("readers").noconvert(), nb::arg("logits_rows").noconvert(),
           nb::arg("want_logits"),
           "Starts a step and returns its faulty sequences. ValueError names the first input that is out of range.")
      .def_prop_ro("check_seconds", &Program::check_seconds, "What comparing the last step's page tags has taken.")
      .def("finish_step", &finish_step, "Returns when the step that begin() started is done.")
      .def(
          "choose", &choose, nb::arg("samplers"), nb::arg("rows"), nb::arg("positions"), nb::arg("masks").noconvert(),
          nb::arg("masked"),
          "Tokens for rows of the last step's logits: an id, -1 for a row that is not finite, or with logprobs "
          "(id, logprob, [(id, logprob)]). masked[i] is the row of masks that has a bit for each token allowed, or -1.")
      .def("export_pages", &export_pages, nb::arg("group"), nb::arg("pages").noconvert(), nb::arg("kv_format"),
           nb::arg("out").noconvert(), "Writes pages, converted to a format, to rows of bytes.")
      .def("import_pages", &import_pages, nb::arg("group"), nb::arg("pages").noconvert(), nb::arg("data").noconvert(),
           "Fills pages with rows of bytes in this executor's format.")
      .def("profile", &profile_view, nb::rv_policy::reference_internal,
           "Times every op from now on: seconds of the last step by op, as one view for ever. Call after finish().")
      .def("weights_view", &weights_view, nb::rv_policy::reference_internal,
           "The packed weights; as `packed` they are those of a program that is built alike.")
      .def("greedy_view", &greedy_view, nb::rv_policy::reference_internal,
           "Arg-max ids of the last step, as one view for ever.")
      .def("logits_view", &logits_view, nb::rv_policy::reference_internal,
           "Logits of the last step, rows padded to a strip.")
      .def_prop_ro("weight_bytes", &Program::weight_bytes)
      .def_prop_ro("kv_bytes", &Program::kv_bytes);
}
