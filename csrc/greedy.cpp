// The greedy choice: the largest logit of each row, of equal ones the lowest id.
#include <algorithm>
#include <cmath>
#include <limits>

#include "program.h"

namespace trimaran {

// Only the largest logit is wanted, and the weights lie in two planes: ops/head.h says how half of them will do.
void Program::find_greedy(const LinearOp& op, const Linear& job, Team::Member& m) {
  constexpr int kTicketsPerThread = 16;  // of the second pass, whose work is unevenly spread
  const Matrix& w = *job.w;
  Worker& worker = workers_[m.id];
  Shortlist list{job,           worker.terms.data(), worker.squares.data(), worker.reach.data(),
                 upper_.data(), worker.lower.data()};
  bool begun = false;
  team_.share(m, w.strips, strips_per_ticket(w, job.rows), [&](int first, int end) {
    if (!begun) {
      begin_strips(op, worker, job.rows);
      kernels_.begin_shortlist(list);
    }
    begun = true;
    kernels_.scan(list, first, end);
  });
  list.lower = worker.limits.data();
  bool merged = false;
  team_.share(m, w.strips, std::max(1, w.strips / (kTicketsPerThread * team_.size())), [&](int first, int end) {
    if (!begun) begin_strips(op, worker, job.rows);
    begun = true;
    for (int r = 0; r < job.rows && !merged; r++) {
      worker.limits[r] = worker.lower[r];
      for (const Worker& other : workers_) worker.limits[r] = std::max(worker.limits[r], other.lower[r]);
    }
    merged = true;
    kernels_.rescore(list, first, end);
  });
}

void Program::run_op(const LogitsOp& op, Team::Member& m) {  // logits that no linear layer was fused with
  if (m.id != 0) return;
  Worker& w = workers_[0];
  w.has_best = true;
  for (int r = 0; r < step_.logits(); r++) {
    const float* x = row_of(op.x, r);
    w.best[r] = {-std::numeric_limits<float>::infinity(), 0};
    for (int i = 0; i < options_.limits.result; i++) {
      if (x[i] > w.best[r].value) w.best[r] = {x[i], i};
    }
    if (want_logits_) {
      std::copy_n(x, options_.limits.result, running_logits() + size_t(r) * logits_stride());
    }
  }
}

// The team has finished: the lowest id among the members' largest values.
void Program::collect_greedy() {
  for (int r = 0; r < step_.logits(); r++) {
    Best best{-std::numeric_limits<float>::infinity(), 0};
    for (const Worker& w : workers_) {
      if (!w.has_best) continue;
      const Best& b = w.best[r];
      if (b.value > best.value || (b.value == best.value && b.id < best.id)) best = b;
    }
    greedy_[first_result_ + r] =
        std::isfinite(best.value) ? best.id : -1;  // NaN is never above the -inf that the search starts from
  }
}

}  // namespace trimaran
