// A persistent team of threads that shares out the stages of a step in tickets.
//
// The caller of run() is member 0; the others spin for some 0.4 ms after a step, then sleep (waking one costs 15 us).
// Every member walks through the same stages in the same order. A stage has n tickets, cut into one queue per member; a
// member empties its own queue (neighbouring tickets: neighbouring weights) and then helps with the others. A stage is
// over when all its tickets are done, not when all members have come: one that the system has put aside between two
// tickets holds nobody up and, when it returns, skips the stages that were finished without it.
//
//   queue q:  [ stage | next ticket ]   a word whose stage is older counts as "next ticket 0", so nothing is ever reset
//   done:     [ stage | finished    ]
#pragma once
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

namespace trimaran {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins politely: after a while the core is offered to whoever may hold what we wait for.
class Backoff {
 public:
  void wait() {
    if (++spins_ % kYieldEvery == 0) {
      sched_yield();
    } else {
      cpu_relax();
    }
  }
  int spins() const { return spins_; }

 private:
  static constexpr int kYieldEvery = 4096;
  int spins_ = 0;
};

class Team {
 public:
  struct Member {
    int id;
    uint32_t stage;  // the last stage this member has been through
  };

  explicit Team(int threads) : size_(threads), queues_(std::min(threads, kMaxQueues)), next_(new Line[queues_]) {
    try {
      for (int id = 1; id < size_; id++) threads_.emplace_back([this, id] { serve(id); });
    } catch (...) {  // the system has no more threads: those that run must end before their handles do
      dismiss();
      throw;
    }
  }

  ~Team() { dismiss(); }

  int size() const { return size_; }

  // Ties each helper to one of `cores`, the first of which is left to member 0. Throws std::system_error.
  void pin(const std::vector<int>& cores) {
    for (int id = 1; id < size_; id++) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cores[id % cores.size()], &one);
      const int error = pthread_setaffinity_np(threads_[id - 1].native_handle(), sizeof one, &one);
      if (error) throw std::system_error(error, std::generic_category(), "pinning a thread");
    }
  }

  // Runs job(member) on member 0 and on every other member that is free to join; returns when none is inside any more.
  template <class Job>
  void run(Job&& job) {
    begin(job);
    finish();
  }

  // run() in two halves. After begin() the others work; the caller does something else first, and comes to help with
  // finish(). Stages that were over by then cost it a look each. `job` must live until finish() returns.
  template <class Job>
  void begin(Job& job) {
    call_ = [](void* self, Member& m) { (*static_cast<std::remove_reference_t<Job>*>(self))(m); };
    self_ = const_cast<void*>(static_cast<const void*>(&job));
    first_stage_ = stage_;
    if (size_ > 1) open_door();
  }
  void finish() {
    Member me{0, first_stage_};
    call_(self_, me);
    stage_ = me.stage;
    if (size_ == 1) return;
    door_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (Backoff b; door_.load(std::memory_order_acquire) & kInside;) b.wait();
  }

  // Inside a job: shares units [0, units) out in tickets of `grain`; work(begin, end) is called once per ticket.
  // Returns when all of them are done, by whomever. Every member must pass the same units and grain.
  template <class Work>
  void share(Member& m, int units, int grain, Work&& work) {
    if (units <= 0) return;
    const uint32_t stage = ++m.stage;
    const int tickets = (units + grain - 1) / grain;
    auto call = [&](int t) { work(t * grain, std::min(units, (t + 1) * grain)); };
    if (size_ == 1) {
      for (int t = 0; t < tickets; t++) call(t);
      return;
    }
    uint32_t finished = 0;
    for (int i = 0; i < queues_; i++) {
      const int q = (m.id + i) % queues_;
      const int first = queue_begin(q, tickets), end = queue_begin(q + 1, tickets);
      for (int t; (t = take(next_[q].word, stage, uint32_t(end - first))) >= 0; finished++) call(first + t);
    }
    if (finished) report(stage, finished);
    for (Backoff b; !over(stage, uint32_t(tickets));) b.wait();
  }

  // Of `units` shared out one by one, the end of those that a member takes before it helps with others'.
  int end_of_queue(const Member& m, int units) const { return queue_begin(m.id % queues_ + 1, units); }

 private:
  struct alignas(128) Line {
    std::atomic<uint64_t> word{0};
  };
  static constexpr int kMaxQueues = 8;
  static constexpr uint64_t kOpen = uint64_t(1) << 31, kInside = kOpen - 1;
  static constexpr int kSpinsBeforeSleep = 20000;

  static uint64_t word(uint32_t stage, uint32_t count) { return uint64_t(stage) << 32 | count; }
  static int32_t age(uint64_t w, uint32_t stage) { return int32_t(uint32_t(w >> 32) - stage); }

  // The first ticket of a queue; of the last one + 1, all.
  int queue_begin(int queue, int tickets) const { return int(int64_t(tickets) * queue / queues_); }

  // The next ticket of a queue, or -1 when there is none left for this stage.
  static int take(std::atomic<uint64_t>& queue, uint32_t stage, uint32_t tickets) {
    uint64_t seen = queue.load(std::memory_order_acquire);
    for (;;) {
      if (age(seen, stage) > 0) return -1;
      const uint32_t t = age(seen, stage) == 0 ? uint32_t(seen) : 0;
      if (t >= tickets) return -1;
      if (queue.compare_exchange_weak(seen, word(stage, t + 1), std::memory_order_acq_rel)) return int(t);
    }
  }
  void report(uint32_t stage, uint32_t finished) {
    uint64_t seen = done_.word.load(std::memory_order_relaxed), now;
    do {
      now = word(stage, (age(seen, stage) == 0 ? uint32_t(seen) : 0) + finished);
    } while (!done_.word.compare_exchange_weak(seen, now, std::memory_order_acq_rel));
  }
  bool over(uint32_t stage, uint32_t tickets) const {
    const uint64_t seen = done_.word.load(std::memory_order_acquire);
    return age(seen, stage) > 0 || (age(seen, stage) == 0 && uint32_t(seen) == tickets);
  }

  // The door's word: [ generation | open | members inside ]. A member that comes after closing time stays outside.
  void open_door() {
    const uint32_t generation = bell_.load(std::memory_order_relaxed) + 1;
    door_.store(uint64_t(generation) << 32 | kOpen, std::memory_order_release);
    bell_.store(generation, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst)) bell_.notify_all();
  }
  void dismiss() {
    stop_.store(true);
    open_door();
    for (auto& t : threads_) t.join();
  }
  void serve(int id) {
    uint32_t seen = 0;
    for (;;) {
      Backoff b;
      while (bell_.load(std::memory_order_acquire) == seen) {
        b.wait();
        if (b.spins() > kSpinsBeforeSleep) {
          asleep_.fetch_add(1, std::memory_order_seq_cst);
          bell_.wait(seen, std::memory_order_seq_cst);
          asleep_.fetch_sub(1, std::memory_order_seq_cst);
        }
      }
      seen = bell_.load(std::memory_order_acquire);
      if (stop_.load()) return;
      uint64_t door = door_.load(std::memory_order_acquire);
      while ((door & kOpen) && !door_.compare_exchange_weak(door, door + 1, std::memory_order_acq_rel)) {
      }
      if (!(door & kOpen)) continue;
      Member me{id, first_stage_};
      call_(self_, me);
      door_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  const int size_, queues_;
  std::unique_ptr<Line[]> next_;
  Line done_;
  alignas(128) std::atomic<uint64_t> door_{0};
  alignas(128) std::atomic<uint32_t> bell_{0};
  std::atomic<int> asleep_{0};
  std::atomic<bool> stop_{false};
  void (*call_)(void*, Member&) = nullptr;  // written while the door is closed and nobody is inside
  void* self_ = nullptr;
  uint32_t first_stage_ = 0, stage_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace trimaran
