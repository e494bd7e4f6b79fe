// Steps, the choice of their tokens, and pages that go in and out between them.
#include "bind.h"

namespace trimaran {
namespace {

using EntryTags = std::pair<Array<int64_t, 2>, Array<uint64_t, 2>>;

void tag_pages(Program& p, int group, const Array<int64_t, 1>& tags, const Array<uint64_t, 1>& owners) {
  p.tag_pages(group, tags.shape(0) ? PageTags{tags.data(), owners.data()} : PageTags{});
}

void read_tables(Program& p, const std::vector<Array<int32_t, 2>>& page_tables,
                 const std::vector<EntryTags>& expected) {
  PageTables tables;
  for (const auto& t : page_tables) tables.pages.push_back({t.data(), int(t.shape(0)), int(t.shape(1))});
  for (size_t g = 0; g < expected.size(); g++) {
    const auto& [tags, owners] = expected[g];
    for (int d = 0; d < 2; d++) {
      if (g >= page_tables.size() || tags.shape(d) != page_tables[g].shape(d) || owners.shape(d) != tags.shape(d)) {
        throw std::invalid_argument("what is expected of pages must have the shape of their table");
      }
    }
    tables.expected.push_back({tags.data(), owners.data()});
  }
  p.read_tables(std::move(tables));
}

nb::tuple begin(Program& p, const Array<int32_t, 1>& tokens, const Array<int32_t, 1>& starts,
                const Array<int32_t, 1>& contexts, const Array<int32_t, 1>& slots, const Array<uint64_t, 1>& readers,
                const Array<int32_t, 1>& logits_rows, bool want_logits, bool prefill, int first_result,
                const OptionalArray<int32_t, 1>& types) {
  if (starts.shape(0) != contexts.shape(0) + 1 || slots.shape(0) != contexts.shape(0)) {
    throw std::invalid_argument("starts must have one entry more than contexts, slots as many");
  }
  if (readers.shape(0) != 0 && readers.shape(0) != contexts.shape(0)) {
    throw std::invalid_argument("readers must have as many entries as contexts");
  }
  if (types && types->shape(0) != tokens.shape(0)) throw std::invalid_argument("types must be as many as tokens");
  const StepArrays arrays{tokens.data(),
                          int(tokens.shape(0)),
                          starts.data(),
                          contexts.data(),
                          slots.data(),
                          int(contexts.shape(0)),
                          readers.shape(0) ? readers.data() : nullptr,
                          logits_rows.data(),
                          int(logits_rows.shape(0)),
                          types ? types->data() : nullptr};
  p.begin(arrays, want_logits, prefill, first_result);
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
                const std::vector<int64_t>& positions, const Array<uint32_t, 2>& masks, const std::vector<int>& masked,
                const std::vector<int>& after) {
  if (samplers.size() != rows.size() || samplers.size() != positions.size()) {
    throw std::invalid_argument("samplers, rows and positions must be as many");
  }
  if (!masked.empty() && masked.size() != rows.size()) throw std::invalid_argument("masked and rows must be as many");
  if (!after.empty() && after.size() != rows.size()) throw std::invalid_argument("after and rows must be as many");
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
    const int drafted = after.empty() ? -1 : after[i];
    if (drafted >= 0 && (i == 0 || samplers[i] != samplers[i - 1])) {
      throw std::invalid_argument("a drafted row that does not follow one of its sampler");
    }
    asked.push_back({samplers[i], rows[i], positions[i],
                     mask < 0 ? nullptr : masks.data() + size_t(mask) * masks.shape(1), drafted});
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

void bind_sampler(nb::module_& m) {
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
}

void bind_steps(nb::class_<Program>& program) {
  program
      .def("tag_pages", &tag_pages, nb::arg("group"), nb::arg("tags").noconvert(), nb::arg("owners").noconvert(),
           "Steps say from now on what they expect of the group's pages; the arrays must outlive the program. "
           "Empty ones: they say nothing.")
      .def("read_tables", &read_tables, nb::arg("page_tables").noconvert(), nb::arg("expected").noconvert(),
           "Names the page tables of the steps from now on, by group, and what is expected of their entries, or (). "
           "Their "
           "memory must stay where it is until others are named.")
      .def("begin", &begin, nb::arg("tokens").noconvert(), nb::arg("starts").noconvert(),
           nb::arg("contexts").noconvert(), nb::arg("slots").noconvert(), nb::arg("readers").noconvert(),
           nb::arg("logits_rows").noconvert(), nb::arg("want_logits"), nb::arg("prefill") = false,
           nb::arg("first_result") = 0, nb::arg("types").noconvert().none() = nb::none(),
           "Starts a step and returns its faulty sequences. ValueError names the first input that is out of range.")
      .def_prop_ro("check_seconds", &Program::check_seconds, "What comparing the last step's page tags has taken.")
      .def("finish_step", &finish_step, "Returns when the step that begin() started is done.")
      .def(
          "choose", &choose, nb::arg("samplers"), nb::arg("rows"), nb::arg("positions"), nb::arg("masks").noconvert(),
          nb::arg("masked"), nb::arg("after"),
          "Tokens for rows of the last step's logits: an id, -1 for a row that is not finite, or with logprobs "
          "(id, logprob, [(id, logprob)]). masked[i] is the row of masks that has a bit for each token allowed, or -1; "
          "after[i] is, in a draft, the token that the row before must give, or -1.")
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

}  // namespace trimaran
