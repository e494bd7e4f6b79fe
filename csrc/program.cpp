#include "program.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>

#include "cpu.h"

namespace trimaran {

// ---- building ----------------------------------------------------------------------------------------------------

Program::Program(const ProgramOptions& options)
    : options_(options),
      kernels_(find_kernels(options.isa)),
      weights_(options.packed ? WeightMemory(options.packed, options.weight_bytes)
                              : WeightMemory(options.weight_bytes)),
      greedy_(options.limits.max_sequences),
      team_(options.threads) {}

int Program::add_buffer(int width, bool logits_rows) {
  buffers_.push_back({width, round_up(width, kStrip), logits_rows, nullptr});
  return int(buffers_.size()) - 1;
}

int Program::add_matrix(const WeightView& view, bool paired) {
  const int strips = matrix_strips(view.n, paired);
  auto* data = weights_.take<uint8_t>(matrix_bytes(view.format, view.n, view.k, paired));
  if (!weights_.lent()) {
    team_.run([&](Team::Member& m) {
      team_.share(m, strips, 4, [&](int first, int end) { pack_strips(view, paired, first, end, data); });
    });
  }
  Matrix made{view.format, view.n, view.k, paired, strips, strip_bytes(view.format, view.k), data, nullptr, {}, {}};
  add_outliers(view, made);
  matrices_.push_back(made);
  return int(matrices_.size()) - 1;
}

void Program::add_outliers(const WeightView& view, Matrix& one) {
  if (!view.sparse) return;
  const auto of = [&](int i) { return view.from_row(size_t(i) * view.n); };
  size_t rows = view.packed_outlier_rows;
  for (int i = 0; i < view.count && !weights_.lent(); i++) {
    for (int s = 0; s < one.strips; s++) rows += outlier_rows(of(i).outlier_starts, view.n, one.paired, s);
  }
  auto* starts = weights_.take<uint32_t>(size_t(view.count) * one.strips + 1);
  auto* outliers = weights_.take<OutlierRow>(rows);
  one.outlier_starts = starts, one.outliers = outliers;
  if (weights_.lent()) return;
  uint32_t first = 0;
  for (int i = 0; i < view.count; i++, starts += one.strips) {  // where one matrix ends the next begins
    first = pack_outliers(of(i), one.paired, one.strips, first, starts, outliers);
  }
}

int Program::add_head(const WeightView& view) {
  const int strips = strip_count(view.n);
  auto* high = weights_.take<uint8_t>(planes_bytes(view.n, view.k));
  uint8_t* low = high + strips * high_strip_bytes(view.k);
  if (!weights_.lent()) {
    team_.run([&](Team::Member& m) {
      team_.share(m, strips, 4, [&](int first, int end) { pack_planes(view, first, end, high, low); });
    });
  }
  matrices_.push_back({view.format, view.n, view.k, false, strips, high_strip_bytes(view.k), high, low, {}, {}});
  return int(matrices_.size()) - 1;
}

int Program::add_vector(const float* data, int n, bool paired) {
  const int strips = matrix_strips(n, paired);
  float* v = weights_.take<float>(size_t(strips) * kStrip);
  for (int i = 0; i < strips * kStrip && !weights_.lent(); i++) {
    const int row = strip_row(n, paired, i / kStrip, i % kStrip);
    if (row >= 0) v[i] = data[row];
  }
  vectors_.push_back(v);
  return int(vectors_.size()) - 1;
}

int Program::add_rope(const float* cos, const float* sin, const float* query_scale, int positions, int dims) {
  const size_t count = size_t(positions) * (dims / 2);
  ropes_.push_back({{cos, cos + count}, {sin, sin + count}, {}, dims});
  if (query_scale) ropes_.back().query_scale = {query_scale, query_scale + positions};
  return int(ropes_.size()) - 1;
}

int Program::add_group(int num_pages, int window) {
  if (groups_.size() == kMostGroups) throw std::invalid_argument("too many cache groups");
  group_limits_.push_back({num_pages, window});
  groups_.push_back({});
  return int(groups_.size()) - 1;
}

void Program::add_op(Op op) {
  if (auto* attention = std::get_if<AttentionOp>(&op)) plan(*attention);
  if (auto* latent = std::get_if<LatentOp>(&op)) plan(*latent);
  if (auto* select = std::get_if<SelectOp>(&op)) plan(*select);
  if (auto* embed = std::get_if<EmbedOp>(&op); embed && embed->index == RowIndex::kType) {
    options_.limits.types = matrices_[embed->weight].n;
  }
  ops_.push_back(op);
}

void Program::finish() {
  const StepLimits& limits = options_.limits;
  int quantised_k = 0, float_k = 0;
  size_t strip = 0, head_strips = 0;
  const auto needs = [&](const Matrix& w, bool copied) {  // copied: prepared even where it stays float
    if (quantises(w)) {
      quantised_k = std::max(quantised_k, w.k);
      if (w.outliers) float_k = std::max(float_k, round_up(w.k, kStrip));
      if (w.low || is_codebook(w.format)) strip = std::max(strip, strip_bytes(WeightFormat::kInt8, w.k));
      if (!w.low) return;
      head_strips = std::max(head_strips, size_t(w.strips));
    } else {
      if (copied) float_k = std::max(float_k, round_up(w.k, kStrip));
      if (is_quantised(w.format)) strip = std::max(strip, size_t(w.k) * kStrip * sizeof(float));
    }
  };
  for (const Op& op : ops_) {
    if (const auto* linear = std::get_if<LinearOp>(&op)) {
      needs(matrices_[linear->weight], linear->norm >= 0 || linear->gather);
    } else if (const auto* experts = std::get_if<ExpertsOp>(&op)) {
      needs(stacks_[experts->gate_up].one, experts->norm >= 0);
      needs(stacks_[experts->down].one, false);
    }
  }
  size_t attention = token_scratch_;
  for (const HeadsCache& cache : heads_) attention = std::max(attention, attention_scratch(cache.head_dim));
  const ActivationShape all{limits.max_rows, quantised_k, float_k}, one{1, quantised_k, float_k};
  size_t bytes = activation_bytes(all);
  for (const Buffer& b : buffers_) {
    bytes += Arena::padded(size_t(b.logits_rows ? limits.max_sequences : limits.max_rows) * b.stride * sizeof(float));
  }
  bytes += team_.size() * (activation_bytes(one) + Arena::padded(strip) + Arena::padded(attention * sizeof(float)));
  scratch_ = Arena(bytes);
  for (Buffer& b : buffers_) {
    b.data = scratch_.take<float>(size_t(b.logits_rows ? limits.max_sequences : limits.max_rows) * b.stride);
  }
  rows_ = plan_activations(scratch_, all);
  const size_t scanned = std::min(limits.max_sequences, kernels_.scan_rows);
  workers_ = std::vector<Worker>(team_.size());
  for (Worker& w : workers_) {
    w.row = plan_activations(scratch_, one);
    w.strip = scratch_.take<uint8_t>(strip);
    w.attention = scratch_.take<float>(attention);
    w.best.resize(limits.max_sequences);
    if (head_strips == 0) continue;
    w.terms.resize(scanned * size_t(quantised_k / kGroup));
    w.squares.resize(w.terms.size());
    for (auto* each : {&w.reach, &w.least}) each->resize(scanned);
    for (auto* each : {&w.likeliest, &w.likeliest_of_all}) each->resize(scanned);
  }
  upper_.resize(head_strips * scanned);
  plan_experts();
  logits_ = HugeMemory(size_t(limits.max_sequences) * logits_stride() * sizeof(float));
  for (size_t g = 0; g < groups_.size(); g++) {
    const size_t bundle = size_t(1) << bundle_bits(limits.page_size), count = size_t(group_limits_[g].num_pages);
    groups_[g].pages = HugeMemory((count + bundle - 1) / bundle * bundle * groups_[g].page_bytes);
  }
#ifdef __GLIBC__
  malloc_trim(0);  // numbers that were packed lay in the heap, which would keep their memory for such as come again
#endif
}

// ---- running -----------------------------------------------------------------------------------------------------

size_t Program::kv_bytes() const {
  size_t bytes = 0;
  for (size_t g = 0; g < groups_.size(); g++) bytes += size_t(group_limits_[g].num_pages) * groups_[g].page_bytes;
  return bytes;
}

void Program::check_running(bool running) const {
  if (running_ != running) throw std::logic_error(running ? "no step is running" : "a step is running");
}

void Program::begin(const StepArrays& arrays, bool want_logits, bool prefill, int first_result) {
  check_running(false);
  if (prefill && prefill_ops_ == 0) throw std::invalid_argument("there are no ops for prompts alone");
  step_.load(arrays, options_.limits, group_limits_);
  if (first_result < 0 || first_result + arrays.logits > options_.limits.max_sequences) {
    throw std::invalid_argument("results out of range");
  }
  want_logits_ = want_logits;
  first_op_ = prefill ? prefill_ops_ : 0;
  end_op_ = prefill || prefill_ops_ == 0 ? ops_.size() : prefill_ops_;
  first_result_ = first_result;
  for (AttentionPlan& plan : plans_) plan.cut(step_);
  for (LatentPlan& plan : latent_plans_) plan.cut(step_);
  for (SelectPlan& plan : select_plans_) plan.cut(step_);
  for (Worker& w : workers_) {
    w.has_best = false, w.scanned = w.rescored = 0;
    std::fill(w.likeliest.begin(), w.likeliest.end(), Best{-std::numeric_limits<float>::infinity(), -1});
  }
  running_ = true;
  if (op_seconds_.empty()) team_.begin(walk_);
}

void Program::finish_step() {
  check_running(true);
  if (op_seconds_.empty()) {
    team_.finish();
  } else {  // ops are timed on member 0, which must see them from the first
    team_.run(walk_);
  }
  collect_greedy();
  judge_scan();
  running_ = false;
}

void Program::walk(Team::Member& m) {
  using Clock = std::chrono::steady_clock;
  double* seconds = m.id == 0 && !op_seconds_.empty() ? op_seconds_.data() + first_op_ : nullptr;
  auto before = seconds ? Clock::now() : Clock::time_point();
  for (size_t i = first_op_; i < end_op_; i++) {
    std::visit([&](const auto& op) { run_op(op, m); }, ops_[i]);
    if (!seconds) continue;
    const auto now = Clock::now();
    *seconds++ = std::chrono::duration<double>(now - before).count();
    before = now;
  }
}

void Program::choose(const std::vector<Asked>& asked, std::vector<Choice>& choices) {
  check_running(false);
  choices.resize(asked.size());
  while (int(row_samplers_.size()) < team_.size()) row_samplers_.emplace_back(kernels_, options_.limits.vocab);
  const auto remembers = [&](int i) { return asked[i].after >= 0 && asked[i].sampler->penalises; };
  team_.run([&](Team::Member& m) {
    team_.share(m, int(asked.size()), 1, [&](int first, int) {
      if (remembers(first)) return;  // whoever has the row before takes this one too
      for (int i = first; i == first || (i < int(asked.size()) && remembers(i)); i++) {
        const Asked& a = asked[i];
        if (i > first && choices[i - 1].token != a.after) {
          choices[i].token = -1;
          continue;
        }
        row_samplers_[m.id].choose(*a.sampler, logits() + size_t(a.row) * logits_stride(), a.mask, a.position,
                                   choices[i]);
      }
    });
  });
}

const std::vector<double>& Program::profile() {
  check_running(false);
  op_seconds_.resize(ops_.size());
  return op_seconds_;
}

void Program::run_op(const EmbedOp& op, Team::Member& m) {
  const auto index_of = [&](int row) {
    if (op.index == RowIndex::kToken) return int(step_.tokens()[row]);
    return op.index == RowIndex::kPosition ? step_.position_of(row) : step_.type_of(row);
  };
  share_rows(m, step_.rows(), [&](int first, int end) {
    for (int r = first; r < end; r++) {
      float* row = row_of(op.out, r);
      unpack_row(matrices_[op.weight], index_of(r), row);
      if (op.scale != 1) std::transform(row, row + buffers_[op.out].width, row, [&](float x) { return x * op.scale; });
    }
  });
}

void Program::run_op(const NormOp& op, Team::Member& m) {
  const Buffer &x = buffers_[op.x], &out = buffers_[op.out];
  Prepare p{};
  p.x = x.data, p.x_stride = x.stride, p.norm = vectors_[op.weight], p.eps = op.eps, p.width = x.width, p.k = x.stride;
  p.f32 = out.data, p.f32_stride = out.stride;
  share_rows(m, rows_of(op.out), [&](int first, int end) { kernels_.prepare(p, first, end); });
}

void Program::run_op(const LayerNormOp& op, Team::Member& m) {
  share_rows(m, rows_of(op.out), [&](int first, int end) {
    for (int r = first; r < end; r++) {
      kernels_.layer_norm(row_of(op.x, r), vectors_[op.weight], vectors_[op.bias], op.eps, row_of(op.out, r),
                          buffers_[op.out].width);
    }
  });
}

Prepare Program::prepare_for(int input, int norm, float eps, bool quantise, const Activations& to) const {
  const Buffer& x = buffers_[input];
  Prepare p{};
  p.x = x.data, p.x_stride = x.stride, p.width = x.width, p.k = x.stride;
  p.norm = norm >= 0 ? vectors_[norm] : nullptr, p.eps = eps;
  if (quantise) p.q = to.q, p.groups = to.groups, p.q_stride = to.q_stride, p.group_stride = to.group_stride;
  p.f32 = to.f32, p.f32_stride = to.f32_stride;
  return p;
}

int Program::units_per_ticket(size_t unit_bytes, int units) const {
  constexpr size_t kTicketBytes = 96 << 10;  // of weights times rows: about two microseconds
  constexpr int kTicketsPerThread = 2;       // at least, where there are units enough
  const int most = std::max(1, units / (kTicketsPerThread * team_.size()));
  return std::clamp(int(kTicketBytes / unit_bytes), 1, most);
}

void Program::run_op(const GluOp& op, Team::Member& m) {
  const auto glu = op.activation == Epilogue::kSwiglu ? kernels_.swiglu : kernels_.geglu;
  share_rows(m, rows_of(op.out), [&](int first, int end) {
    for (int r = first; r < end; r++) glu(row_of(op.gate_up, r), row_of(op.out, r), buffers_[op.out].width);
  });
}

void Program::run_op(const GeluOp& op, Team::Member& m) {
  share_rows(m, rows_of(op.out), [&](int first, int end) {
    for (int r = first; r < end; r++) kernels_.gelu(row_of(op.x, r), row_of(op.out, r), buffers_[op.out].stride);
  });
}

void Program::run_op(const TanhOp& op, Team::Member& m) {
  share_rows(m, rows_of(op.out), [&](int first, int end) {
    for (int r = first; r < end; r++) kernels_.tanh(row_of(op.x, r), row_of(op.out, r), buffers_[op.out].stride);
  });
}

void Program::run_op(const AddOp& op, Team::Member& m) {
  share_rows(m, rows_of(op.out), [&](int first, int end) {
    for (int r = first; r < end; r++)
      kernels_.add(row_of(op.a, r), row_of(op.b, r), row_of(op.out, r), buffers_[op.out].stride);
  });
}

void Program::run_op(const TakeRowsOp& op, Team::Member& m) {
  share_rows(m, step_.logits(), [&](int first, int end) {
    for (int r = first; r < end; r++) {
      std::copy_n(row_of(op.x, step_.logits_rows()[r]), buffers_[op.x].stride, row_of(op.out, r));
    }
  });
}

void Program::run_op(const MeanRowsOp& op, Team::Member& m) {
  const int stride = buffers_[op.x].stride;
  share_rows(m, step_.logits(), [&](int first, int end) {
    for (int r = first; r < end; r++) {
      const SequenceRows& s = step_.sequence_of(step_.logits_rows()[r]);
      float* out = row_of(op.out, r);
      std::copy_n(row_of(op.x, s.first_row), stride, out);
      for (int i = 1; i < s.rows; i++) kernels_.add(out, row_of(op.x, s.first_row + i), out, stride);
      std::transform(out, out + stride, out, [&](float x) { return x / float(s.rows); });
    }
  });
}

}  // namespace trimaran
