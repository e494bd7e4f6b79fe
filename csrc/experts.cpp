// Mixture of experts: only the experts that rows were routed to are read.
#include "experts.h"

#include <algorithm>
#include <cstring>

#include "program.h"

namespace trimaran {

void ExpertGrouping::reserve(int rows, int top_k, int experts) {
  list_.resize(std::max(list_.size(), size_t(rows) * top_k));
  ends_.reserve(experts);
  pieces_.reserve(most_pieces(rows, top_k, experts));
}

void ExpertGrouping::sort(const float* routes, size_t stride, int rows, int top_k, int experts) {
  ends_.assign(experts, 0);
  for (int r = 0; r < rows; r++) {
    for (int k = 0; k < top_k; k++) ends_[int(routes[r * stride + k])]++;
  }
  pieces_.clear();
  int first = 0;
  for (int e = 0; e < experts; e++) {
    const int count = ends_[e];
    for (int at = 0; at < count; at += kPieceRows) pieces_.push_back({e, first + at, std::min(kPieceRows, count - at)});
    ends_[e] = first;
    first += count;
  }
  for (int r = 0; r < rows; r++) {
    const float *chosen = routes + r * stride, *weights = chosen + top_k;
    for (int k = 0; k < top_k; k++) list_[ends_[int(chosen[k])]++] = {r, weights[k]};
  }
}

int Program::add_experts(const WeightView& view, bool paired) {
  const int experts = view.count;
  const int strips = matrix_strips(view.n, paired);
  const size_t bytes = matrix_bytes(view.format, view.n, view.k, paired);
  auto* data = weights_.take<uint8_t>(experts * bytes);
  const auto pack = [&](int first, int end) {
    for (int i = first; i < end; i++) {
      const int e = i / strips, strip = i % strips;
      pack_strips(view.from_row(size_t(e) * view.n), paired, strip, strip + 1, data + e * bytes);
    }
  };
  if (!weights_.lent()) {
    team_.run([&](Team::Member& m) { team_.share(m, experts * strips, 4, pack); });
  }
  Matrix one{view.format, view.n, view.k, paired, strips, strip_bytes(view.format, view.k), data, nullptr, {}, {}};
  add_outliers(view, one);
  stacks_.push_back({one, experts, bytes});
  return int(stacks_.size()) - 1;
}

void Program::plan_experts() {
  ActivationShape gathered{}, hidden{};
  int rows = options_.limits.max_rows, scores = 0;
  const auto widen = [&](ActivationShape& s, int count, const Matrix& w) {
    const int k = round_up(w.k, kStrip);
    s.rows = std::max(s.rows, count);
    if (quantises(w)) s.quantised_k = std::max(s.quantised_k, k);
    if (!quantises(w) || w.outliers) s.float_k = std::max(s.float_k, k);
  };
  expert_workers_ = std::vector<ExpertWorker>(team_.size());
  for (const Op& op : ops_) {
    if (const auto* route = std::get_if<RouteOp>(&op)) scores = std::max(scores, buffers_[route->logits].stride);
    const auto* experts = std::get_if<ExpertsOp>(&op);
    if (!experts) continue;
    const ExpertStack &gate_up = stacks_[experts->gate_up], &down = stacks_[experts->down];
    widen(gathered, std::min(rows, kPieceRows), gate_up.one);
    widen(hidden, rows * experts->top_k, down.one);
    for (ExpertWorker& w : expert_workers_) w.grouping.reserve(rows, experts->top_k, gate_up.experts);
  }
  const size_t tile = size_t(gathered.rows) * kStrip;
  expert_scratch_ = Arena(activation_bytes(hidden) +
                          team_.size() * (activation_bytes(gathered) + Arena::padded(tile * sizeof(float)) +
                                          Arena::padded(2 * size_t(scores) * sizeof(float))));
  hidden_ = plan_activations(expert_scratch_, hidden);
  for (ExpertWorker& w : expert_workers_) {
    w.gathered = plan_activations(expert_scratch_, gathered);
    w.tile = expert_scratch_.take<float>(tile);
    w.scores = expert_scratch_.take<float>(2 * size_t(scores));
  }
}

void Program::run_op(const RouteOp& op, Team::Member& m) {
  const float* bias = op.bias >= 0 ? vectors_[op.bias] : nullptr;
  float* scores = expert_workers_[m.id].scores;
  share_rows(m, rows_of(op.logits), [&](int first, int end) {
    for (int r = first; r < end; r++) kernels_.route(op.routing, row_of(op.logits, r), bias, scores, row_of(op.out, r));
  });
}

// One member's part in one op. Two stages: the first makes activation(gate) * up for every row and expert, a unit of 32
// columns at a time, which is rounded to integers by who computed it; the second makes a few columns of the result for
// all rows and experts, so that threads share evenly however the rows are spread.
class Program::ExpertsRun {
 public:
  ExpertsRun(Program& program, const ExpertsOp& op, int member)
      : p_(program),
        op_(op),
        gate_up_(p_.stacks_[op.gate_up]),
        down_(p_.stacks_[op.down]),
        worker_(p_.expert_workers_[member]),
        strip_(p_.workers_[member].strip),
        rows_(p_.rows_of(op.x)),
        alone_(rows_ == 1),
        quantised_(p_.quantises(gate_up_.one)),
        rounded_(p_.quantises(down_.one)),
        in_(alone_ ? p_.workers_[member].row : p_.rows_) {
    prepare_ = p_.prepare_for(op.x, op.norm, op.eps, quantised_, in_);
    prepare_.both = gate_up_.one.outliers != nullptr;
    if (!quantised_) in_.q = nullptr;
    if (!prepares()) in_.f32 = p_.buffers_[op.x].data, in_.f32_stride = p_.buffers_[op.x].stride;
  }

  void run(Team::Member& m) {
    if (rows_ == 0) return;
    if (prepares() && !alone_) {
      p_.share_rows(m, rows_, [&](int first, int end) { p_.kernels_.prepare(prepare_, first, end); });
    }
    const int pairs = rows_ * op_.top_k, pieces = most_pieces(rows_, op_.top_k, gate_up_.experts);
    const size_t rows_of_piece = std::max(1, pairs / pieces);
    const int units = (gate_up_.one.strips + kUnitStrips - 1) / kUnitStrips;
    const size_t unit_bytes = kUnitStrips * gate_up_.one.strip_bytes * rows_of_piece;
    p_.team_.share(m, pieces * units, p_.units_per_ticket(unit_bytes, pieces * units), [&](int first, int end) {
      begin();
      for (int i = first; i < end; i++) {
        if (size_t(i / units) < pieces_.size()) make_unit(pieces_[i / units], i % units);
      }
    });
    const int most = std::max(1, down_.one.strips / (2 * p_.team_.size()));
    p_.team_.share(m, down_.one.strips, std::min(kColumnStrips, most), [&](int first, int end) {
      begin();
      make_columns(first, end);
    });
  }

 private:
  static constexpr int kUnitStrips = kStrip / 16;  // of gate and up, which make 16 columns each
  static constexpr int kColumnStrips = 2;          // read in one go before the next expert's: single ones cost 8 %

  bool prepares() const { return quantised_ || op_.norm >= 0; }

  // What is this member's own; with a ticket in hand, for only then is it sure that the routes are still there.
  void begin() {
    if (begun_) return;
    begun_ = true;
    const Buffer& routes = p_.buffers_[op_.routes];
    worker_.grouping.sort(routes.data, routes.stride, rows_, op_.top_k, gate_up_.experts);
    if (alone_ && prepares()) p_.kernels_.prepare(prepare_, 0, 1);
  }

  // An expert's strips from `strip` on, as a matrix.
  static Matrix strips_of(const ExpertStack& stack, int expert, int strip) {
    Matrix w = stack.one;
    w.data += expert * stack.bytes + strip * w.strip_bytes;
    if (w.outliers) w.outlier_starts += size_t(expert) * w.strips + strip;
    return w;
  }

  // The prepared rows of a piece, side by side.
  Activations rows_of(const ExpertPiece& piece) {
    const RoutedRow* list = worker_.grouping.list() + piece.first;
    if (piece.rows == 1) return from_row(in_, list->row);
    Activations to = worker_.gathered;
    if (!quantised_) to.q = nullptr;
    if (held_ != &piece) gather(list, piece.rows, to);
    held_ = &piece;
    return to;
  }

  void gather(const RoutedRow* list, int rows, const Activations& to) const {
    const int k = gate_up_.one.k;
    for (int r = 0; r < rows; r++) {
      const Activations from = from_row(in_, list[r].row), at = from_row(to, r);
      if (quantised_) {
        std::memcpy(at.q, from.q, k);
        std::memcpy(at.groups, from.groups, k / kGroup * sizeof(GroupTerms));
      }
      if (!quantised_ || prepare_.both) {
        std::memcpy(at.f32, from.f32, k * sizeof(float));
      }
    }
  }

  void make_unit(const ExpertPiece& piece, int unit) {
    const int strip = unit * kUnitStrips;
    const Matrix w = strips_of(gate_up_, piece.expert, strip);
    const Activations to = from_row(p_.hidden_, piece.first);
    Linear job{};
    job.w = &w, job.a = rows_of(piece), job.rows = piece.rows, job.epilogue = Epilogue::kSwiglu, job.scratch = strip_;
    job.out = rounded_ ? worker_.tile : to.f32 + unit * kStrip, job.out_stride = rounded_ ? kStrip : to.f32_stride;
    p_.kernels_.linear(job, 0, std::min(kUnitStrips, w.strips - strip));
    if (!rounded_) return;
    Prepare round{};
    round.x = worker_.tile, round.x_stride = kStrip, round.width = kStrip, round.k = kStrip;
    round.q = to.q + unit * kGroup, round.groups = to.groups + unit;
    round.q_stride = to.q_stride, round.group_stride = to.group_stride;
    round.both = down_.one.outliers != nullptr, round.f32 = to.f32 + unit * kGroup, round.f32_stride = to.f32_stride;
    p_.kernels_.prepare(round, 0, piece.rows);
  }

  void make_columns(int first_strip, int end_strip) {
    const Buffer& out = p_.buffers_[op_.out];
    const size_t at = size_t(first_strip) * kStrip;
    const int columns = (end_strip - first_strip) * kStrip;
    for (int r = 0; r < rows_; r++) std::fill_n(p_.row_of(op_.out, r) + at, columns, 0.f);
    for (const ExpertPiece& piece : pieces_) {
      const Matrix w = strips_of(down_, piece.expert, 0);
      Linear job{};
      job.w = &w, job.a = from_row(p_.hidden_, piece.first), job.rows = piece.rows, job.scratch = strip_;
      if (!rounded_) job.a.q = nullptr;
      job.epilogue = Epilogue::kRouted, job.out = out.data, job.out_stride = out.stride;
      job.routed = worker_.grouping.list() + piece.first;
      p_.kernels_.linear(job, first_strip, end_strip);
    }
    if (op_.residual < 0) return;
    for (int r = 0; r < rows_; r++) {
      float* to = p_.row_of(op_.out, r) + at;
      p_.kernels_.add(p_.row_of(op_.residual, r) + at, to, to, columns);
    }
  }

  Program& p_;
  const ExpertsOp& op_;
  const ExpertStack &gate_up_, &down_;
  ExpertWorker& worker_;
  uint8_t* strip_;
  const int rows_;
  const bool alone_, quantised_, rounded_;
  Activations in_;
  Prepare prepare_;
  const std::vector<ExpertPiece>& pieces_ = worker_.grouping.pieces();
  bool begun_ = false;
  const ExpertPiece* held_ = nullptr;  // whose rows are gathered
};

void Program::run_op(const ExpertsOp& op, Team::Member& m) { ExpertsRun(*this, op, m.id).run(m); }

}  // namespace trimaran
