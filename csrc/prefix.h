// Which sequences of a step begin with the same pages: what attention reads once for all of them.
#pragma once
#include <vector>

#include "step.h"

namespace trimaran {

// Sequences in an order in which those that share most lie beside each other. Page numbers are compared, nothing else:
// what two sequences of a step find under one number is the same. Only pages that the step does not write count.
class PrefixOrder {
 public:
  PrefixOrder(int group, int page_size) : group_(group), page_size_(page_size) {}

  struct Item {
    int sequence;
    int shared;  // pages, from the first on, that it shares with the item before it
    const int32_t* pages;
    int full;  // pages that were full before the step
  };

  void clear() { items_.clear(); }
  void add(int sequence, const SequenceRows& rows) {
    items_.push_back({sequence, 0, rows.pages[group_], rows.context / page_size_});
  }
  // Takes time in proportion to the pages that are compared, each once, and no memory.
  void sort() { sort(0, int(items_.size()), 0); }
  const std::vector<Item>& items() const { return items_; }

 private:
  void sort(int first, int end, int depth);

  int group_, page_size_;
  std::vector<Item> items_;
};

}  // namespace trimaran
