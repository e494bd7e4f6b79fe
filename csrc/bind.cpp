// The Python module: registers, nothing else; and how a program is built.
#include "bind.h"

#include "cpu.h"

using namespace trimaran;

namespace {

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const Kernels* k : usable_kernels()) names.emplace_back(k->name);
  return names;
}

void construct(Program* self, const std::string& isa, int threads, int vocab, int result, int max_rows,
               int max_sequences, int page_size, int max_positions, bool int8_activations, const std::string& kv,
               size_t weight_bytes, bool share_prefixes, const OptionalArray<uint8_t, 1>& packed) {
  const StepLimits limits{vocab, result, max_rows, max_sequences, page_size, max_positions};
  if (packed && packed->shape(0) != weight_bytes) throw std::invalid_argument("packed weights are of another size");
  const uint8_t* lent = packed ? packed->data() : nullptr;
  new (self) Program({isa, threads, limits, int8_activations, kv_format(kv), share_prefixes, weight_bytes, lent});
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
  if (name == "type") return RowIndex::kType;
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
                const std::string& epilogue, int residual, bool gather_residual, bool wide, bool reuse) {
  p.add_op(LinearOp{out, x, weight, bias, norm, eps, gather, epilogue_named(epilogue), residual, gather_residual, wide,
                    reuse});
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
  m.def(
      "bundle_pages", [](int page_size) { return 1 << bundle_bits(page_size); }, nb::arg("page_size"),
      "Neighbouring pages that lie side by side.");
  bind_weights(m);
  bind_sampler(m);
  nb::class_<HeadNormOp>(m, "HeadNorm", "RMS norm of queries or keys; weight -1: none.")
      .def(nb::init<int, float, bool>(), nb::arg("weight"), nb::arg("eps"), nb::arg("whole"));
  auto program =
      nb::class_<Program>(m, "Program", "Buffers, packed weights and ops, built once and run once per step.")
          .def("__init__", &construct, nb::kw_only(), nb::arg("isa"), nb::arg("threads"), nb::arg("vocab"),
               nb::arg("result"), nb::arg("max_rows"), nb::arg("max_sequences"), nb::arg("page_size"),
               nb::arg("max_positions"), nb::arg("int8_activations"), nb::arg("kv_format"), nb::arg("weight_bytes"),
               nb::arg("share_prefixes") = true, nb::arg("packed").noconvert().none() = nb::none(),
               nb::keep_alive<1, 14>())
          .def("add_group", &Program::add_group, nb::arg("num_pages"), nb::arg("window"))
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
              "rms_norm",
              [](Program& p, int out, int x, int weight, float eps) { p.add_op(NormOp{out, x, weight, eps}); },
              nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"))
          .def(
              "layer_norm",
              [](Program& p, int out, int x, int weight, int bias, float eps) {
                p.add_op(LayerNormOp{out, x, weight, bias, eps});
              },
              nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("bias"), nb::arg("eps"))
          .def("linear", &add_linear, nb::kw_only(), nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("bias"),
               nb::arg("norm"), nb::arg("eps"), nb::arg("gather"), nb::arg("epilogue"), nb::arg("residual"),
               nb::arg("gather_residual"), nb::arg("wide"), nb::arg("reuse"))
          .def(
              "attention",
              [](Program& p, int out, int qkv, int cache, int layer, int heads, int rope, float scale,
                 const HeadNormOp& q_norm, const HeadNormOp& k_norm, bool causal) {
                p.add_op(AttentionOp{out, qkv, cache, layer, heads, rope, scale, q_norm, k_norm, causal});
              },
              nb::kw_only(), nb::arg("out"), nb::arg("qkv"), nb::arg("cache"), nb::arg("layer"), nb::arg("heads"),
              nb::arg("rope"), nb::arg("scale"), nb::arg("q_norm"), nb::arg("k_norm"), nb::arg("causal"))
          .def("route", &add_route, nb::kw_only(), nb::arg("out"), nb::arg("logits"), nb::arg("bias"),
               nb::arg("experts"), nb::arg("top_k"), nb::arg("scoring"), nb::arg("groups"), nb::arg("top_groups"),
               nb::arg("normalise"), nb::arg("epsilon"), nb::arg("factor"))
          .def("experts", &add_experts_op, nb::kw_only(), nb::arg("out"), nb::arg("x"), nb::arg("routes"),
               nb::arg("gate_up"), nb::arg("down"), nb::arg("top_k"), nb::arg("norm"), nb::arg("eps"),
               nb::arg("residual"))
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
                 int norm_bias, float eps) {
                p.add_op(SelectOp{out, q, k, weights, cache, layer, heads, rope, norm, norm_bias, eps});
              },
              nb::kw_only(), nb::arg("out"), nb::arg("q"), nb::arg("k"), nb::arg("weights"), nb::arg("cache"),
              nb::arg("layer"), nb::arg("heads"), nb::arg("rope"), nb::arg("norm"), nb::arg("norm_bias"),
              nb::arg("eps"))
          .def(
              "glu",
              [](Program& p, int out, int gate_up,
                 const std::string& kind) { p.add_op(GluOp{out, gate_up, epilogue_named(kind)}); },
              nb::arg("out"), nb::arg("gate_up"), nb::arg("kind"))
          .def(
              "gelu", [](Program& p, int out, int x) { p.add_op(GeluOp{out, x}); }, nb::arg("out"), nb::arg("x"))
          .def(
              "tanh", [](Program& p, int out, int x) { p.add_op(TanhOp{out, x}); }, nb::arg("out"), nb::arg("x"))
          .def(
              "add", [](Program& p, int out, int a, int b) { p.add_op(AddOp{out, a, b}); }, nb::arg("out"),
              nb::arg("a"), nb::arg("b"))
          .def(
              "take_rows", [](Program& p, int out, int x) { p.add_op(TakeRowsOp{out, x}); }, nb::arg("out"),
              nb::arg("x"))
          .def(
              "mean_rows", [](Program& p, int out, int x) { p.add_op(MeanRowsOp{out, x}); }, nb::arg("out"),
              nb::arg("x"))
          .def(
              "logits", [](Program& p, int x) { p.add_op(LogitsOp{x}); }, nb::arg("x"))
          .def("begin_prefill_ops", &Program::begin_prefill_ops,
               "The ops that follow are a list of their own, for steps of prompts.")
          .def("finish", &Program::finish, "Allocates buffers and pages; call once, after everything was added.")
          .def("pin_threads", &Program::pin_threads, nb::arg("cores"),
               "Ties each thread but the caller's to one of these cores, the first of which is left to the caller.");
  bind_steps(program);
}
