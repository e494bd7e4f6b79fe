// How a step's attention over keys and values of heads is cut into units of work.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "prefix.h"
#include "step.h"

namespace trimaran {

struct AttentionShape {
  int heads, kv_heads, head_dim;
  int window;  // 0: none
  int group;   // whose pages are read
  bool causal;
  bool taken;  // only rows that need logits attend; all append their keys and values
};

// Attention of one shape (all layers of a model share it), cut for the team anew in every step.
//
// Sequences of few rows that begin with the same pages become units together, which read those pages once for all of
// them. Each block of tokens is reduced on its own and blocks are merged in ascending order, so who is read with whom
// leaves no trace in the results. There is nothing to gain with a window, which the beginning of a sequence has left.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionShape& shape, int page_size, bool share_prefixes, int threads)
      : shape_(shape),
        page_size_(page_size),
        threads_(threads),
        share_prefixes_(share_prefixes && shape.window == 0 && shape.causal),
        prefixes_(shape.group, page_size),
        partials_(partials_for(threads)) {}

  void cut(const Step& step);

  struct Store {
    int sequence, row;  // row within the step
  };
  const std::vector<SequenceRows>& sequences() const { return sequences_; }
  const std::vector<AttentionUnit>& units() const { return units_; }
  const std::vector<UnitPart>& parts() const { return parts_; }
  // Rows whose keys and values are appended in a stage of their own, because several units read them.
  const std::vector<Store>& stores() const { return stores_; }
  float* partials() { return reinterpret_cast<float*>(partials_.data()); }

  // A unit with partial results is done: true for the last one of its rows, which has to merge them.
  bool last_of_group(const AttentionUnit& u) {
    if (pending_[u.group].fetch_sub(1, std::memory_order_acq_rel) > 1) return false;
    pending_[u.group].store(pieces_[u.group], std::memory_order_relaxed);  // ready for the next layer
    return true;
  }

 private:
  void find_sequences(const Step& step);
  bool stores_itself(const SequenceRows& s) const { return s.rows == 1 && !shape_.taken && rows_of(s) <= kUnitRows; }
  int rows_of(const SequenceRows& s) const { return s.rows * (shape_.heads / shape_.kv_heads); }
  void add_sequence(const SequenceRows& s, int index);
  int shared_blocks(const PrefixOrder::Item& item) const { return item.shared * page_size_ / kBlockTokens; }
  void add_sharers(int first, int end);
  void split_long_rows();

  AttentionShape shape_;
  int page_size_, threads_;
  bool share_prefixes_;
  PrefixOrder prefixes_;
  HugeMemory partials_;
  std::vector<SequenceRows> sequences_;  // those of the step; with `taken` a run of its rows each
  std::vector<AttentionUnit> units_;
  std::vector<UnitPart> parts_;
  std::vector<Store> stores_;
  std::vector<int> pieces_;
  std::unique_ptr<std::atomic<int>[]> pending_;
  size_t pending_size_ = 0;
};

}  // namespace trimaran
