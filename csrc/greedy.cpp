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
  Shortlist list{job,           worker.terms.data(),     worker.squares.data(), worker.reach.data(),
                 upper_.data(), worker.likeliest.data(), worker.least.data()};
  bool begun = false;
  team_.share(m, w.strips, strips_per_ticket(w, job.rows), [&](int first, int end) {
    if (!begun) {
      begin_strips(op, worker, job.rows);
      kernels_.begin_shortlist(list);
    }
    begun = true;
    kernels_.scan(list, first, end);
    worker.scanned += end - first;
  });
  list.likeliest = worker.likeliest_of_all.data();
  bool scored = false;
  team_.share(m, w.strips, std::max(1, w.strips / (kTicketsPerThread * team_.size())), [&](int first, int end) {
    if (!begun) begin_strips(op, worker, job.rows);
    begun = true;
    if (!scored) {  // by every member for itself: a wait for another would take longer
      for (int r = 0; r < job.rows; r++) list.likeliest[r] = likeliest_of_all(r);
      kernels_.score_likeliest(list);
    }
    scored = true;
    worker.rescored += kernels_.rescore(list, first, end);
  });
}

Best Program::likeliest_of_all(int row) const {
  Best likeliest = workers_[0].likeliest[row];
  for (const Worker& w : workers_) {
    if (w.likeliest[row].beats(likeliest)) likeliest = w.likeliest[row];
  }
  return likeliest;
}

// A scan pays if few strips stay, as after text. After random tokens many do: then most choices read the whole head in
// one go, and every sixteenth looks whether that has changed.
void Program::judge_scan() {
  constexpr float kTooMany = 0.4f, kNews = 0.25f;
  constexpr int kWholeHeads = 15;
  int scanned = 0, rescored = 0;
  for (const Worker& w : workers_) scanned += w.scanned, rescored += w.rescored;
  if (scanned > 0) {
    stayed_ += kNews * (float(rescored) / float(scanned) - stayed_);
    whole_heads_ = stayed_ > kTooMany ? kWholeHeads : 0;
  } else if (whole_heads_ > 0 && step_.logits() > 0) {
    whole_heads_--;
  }
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
      if (w.has_best && w.best[r].beats(best)) best = w.best[r];
    }
    greedy_[first_result_ + r] =
        std::isfinite(best.value) ? best.id : -1;  // NaN is never above the -inf that the search starts from
  }
}

}  // namespace trimaran
