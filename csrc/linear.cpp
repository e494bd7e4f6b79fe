// Linear layers: rows are prepared, then strips of the matrix are shared out.
#include <algorithm>
#include <limits>

#include "program.h"

namespace trimaran {

Prepare Program::prepare_for(const LinearOp& op, const Activations& to) const {
  Prepare p = prepare_for(op.x, op.norm, op.eps, quantises(matrices_[op.weight]), to);
  p.gather = op.gather ? step_.logits_rows() : nullptr;
  p.wide = op.wide;
  p.both = matrices_[op.weight].outliers != nullptr;
  return p;
}

void Program::begin_strips(const LinearOp& op, Worker& worker, int rows) {
  if (rows == 1 && prepares(op)) kernels_.prepare(prepare_for(op, worker.row), 0, 1);
  if (op.epilogue != Epilogue::kLogits) return;
  std::fill_n(worker.best.begin(), rows, Best{-std::numeric_limits<float>::infinity(), 0});
  worker.has_best = true;
}

int Program::strips_per_ticket(const Matrix& w, int rows) const {
  return units_per_ticket(w.strip_bytes * size_t(rows), w.strips);
}

namespace {

// The same layer for `rows` of its rows from `first` on.
Linear part_of(Linear job, int first, int rows) {
  job.rows = rows, job.a = from_row(job.a, first);
  if (job.out) job.out += first * job.out_stride;
  if (job.residual_rows) {
    job.residual_rows += first;
  } else if (job.residual) {
    job.residual += first * job.residual_stride;
  }
  if (job.best) job.best += first;
  return job;
}

}  // namespace

void Program::run_op(const LinearOp& op, Team::Member& m) {
  constexpr int kBlockRows = 128;  // rows that stay in a core's cache while all strips pass by
  const Matrix& w = matrices_[op.weight];
  const Buffer& x = buffers_[op.x];
  const bool logits = op.epilogue == Epilogue::kLogits;
  const int rows = op.gather ? step_.logits() : rows_of(op.x);
  if (rows == 0) return;
  Worker& worker = workers_[m.id];
  const bool alone = rows == 1;  // one row: every member prepares it for itself rather than waiting for another

  Linear job{};
  job.w = &w, job.rows = rows, job.epilogue = op.epilogue, job.scratch = worker.strip;
  job.bias = op.bias >= 0 ? vectors_[op.bias] : nullptr;
  if (logits) {
    job.out = want_logits_ ? running_logits() : nullptr, job.out_stride = logits_stride();
    job.best = worker.best.data();
  } else {
    job.out = buffers_[op.out].data, job.out_stride = buffers_[op.out].stride;
  }
  if (op.residual >= 0) job.residual = buffers_[op.residual].data, job.residual_stride = buffers_[op.residual].stride;
  job.residual_rows = op.gather_residual ? step_.logits_rows() : nullptr;
  job.a = alone ? worker.row : rows_;
  job.a.wide = op.wide;
  if (!quantises(w)) job.a.q = nullptr;
  if (!prepares(op)) job.a.f32 = x.data, job.a.f32_stride = x.stride;

  if (prepares(op) && !alone && !op.reuse) {
    const Prepare p = prepare_for(op, rows_);
    share_rows(m, rows, [&](int first, int end) { kernels_.prepare(p, first, end); });
  }
  if (logits && w.low && !want_logits_ && !op.wide && rows <= kernels_.scan_rows && whole_heads_ == 0) {
    return find_greedy(op, job, m);
  }
  const int blocks = (rows + kBlockRows - 1) / kBlockRows;
  bool begun = false;
  team_.share(m, blocks * w.strips, strips_per_ticket(w, rows / blocks), [&](int first, int end) {
    if (!begun) begin_strips(op, worker, rows);
    begun = true;
    while (first < end) {
      const int block = first / w.strips, strip = first % w.strips, strips = std::min(end - first, w.strips - strip);
      const int row = rows * block / blocks, end_row = rows * (block + 1) / blocks;
      kernels_.linear(part_of(job, row, end_row - row), strip, strip + strips);
      first += strips;
    }
  });
}

}  // namespace trimaran
