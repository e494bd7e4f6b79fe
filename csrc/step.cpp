#include "step.h"

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <string>

namespace trimaran {
namespace {

void check(int64_t value, int64_t low, int64_t end, const char* what, int index) {
  if (value >= low && value < end) return;
  throw std::invalid_argument(std::string(what) + " " + std::to_string(value) + " at index " + std::to_string(index) +
                              " is not in [" + std::to_string(low) + ", " + std::to_string(end) + ")");
}

}  // namespace

void Step::load(const StepArrays& a, const StepLimits& limits, const std::vector<GroupLimits>& groups) {
  check(a.rows, 1, limits.max_rows + 1, "number of rows", 0);
  check(a.sequences, 1, limits.max_sequences + 1, "number of sequences", 0);
  check(a.logits, 0, limits.max_sequences + 1, "number of logits rows", 0);
  for (int i = 0; i < a.rows; i++) check(a.tokens[i], 0, limits.vocab, "token", i);
  for (int i = 0; i < a.logits; i++) check(a.logits_rows[i], 0, a.rows, "logits row", i);
  check(a.starts[0], 0, 1, "first row", 0);
  check(a.starts[a.sequences], a.rows, a.rows + 1, "last row", a.sequences);
  check(int64_t(a.page_tables.size()), int64_t(groups.size()), int64_t(groups.size()) + 1, "number of page tables", 0);
  int table_rows = INT_MAX, columns = INT_MAX;
  for (const PageTable& t : a.page_tables)
    table_rows = std::min(table_rows, t.rows), columns = std::min(columns, t.columns);
  sequences_.clear();
  for (int i = 0; i < a.sequences; i++) {
    check(a.starts[i + 1], int64_t(a.starts[i]) + 1, int64_t(a.rows) + 1, "row", i + 1);
    check(a.slots[i], 0, table_rows, "slot", i);
    const int rows = a.starts[i + 1] - a.starts[i];
    const int64_t most = std::min(int64_t(limits.max_positions), int64_t(columns) * limits.page_size) - rows;
    check(a.contexts[i], 0, most + 1, "context", i);
    const int count = (a.contexts[i] + rows + limits.page_size - 1) / limits.page_size;
    SequenceRows sequence{a.starts[i], rows, a.contexts[i], {}};
    for (size_t g = 0; g < groups.size(); g++) {
      const PageTable& table = a.page_tables[g];
      const int32_t* pages = table.pages + size_t(a.slots[i]) * table.columns;
      const int seen = first_seen(a.contexts[i], groups[g].window);
      for (int p = seen / limits.page_size; p < count; p++) check(pages[p], 0, groups[g].num_pages, "page", p);
      sequence.pages[g] = pages;
    }
    sequences_.push_back(sequence);
  }
  arrays_ = a;
}

}  // namespace trimaran
