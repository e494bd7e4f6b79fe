#include "step.h"

#include <algorithm>
#include <chrono>
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

// Whether the pages first to end - 1 that a sequence reads or writes are what the entries of its row of the table were
// made for, those from `written` on being its own.
bool holds_pages(const int32_t* pages, const PageTags& expected, const GroupLimits& group, int first, int written,
                 int end, uint64_t reader) {
  for (int p = first; p < end; p++) {
    const int page = pages[p];
    const int64_t tag = expected.tags[p];
    const uint64_t owner = p < written ? expected.owners[p] ^ reader : reader;
    if (page <= 0 || page >= group.num_pages || tag == 0) return false;
    if (group.held.tags[page] != tag || group.held.owners[page] != owner) return false;
  }
  return true;
}

}  // namespace

void Step::load(const StepArrays& a, const StepLimits& limits, const std::vector<GroupLimits>& groups) {
  check(a.rows, 1, limits.max_rows + 1, "number of rows", 0);
  check(a.sequences, 1, limits.max_sequences + 1, "number of sequences", 0);
  check(a.logits, 0, limits.max_sequences + 1, "number of logits rows", 0);
  for (int i = 0; i < a.rows; i++) check(a.tokens[i], 0, limits.vocab, "token", i);
  for (int i = 0; i < a.rows && a.types; i++) check(a.types[i], 0, limits.types, "type", i);
  for (int i = 0; i < a.logits; i++) check(a.logits_rows[i], 0, a.rows, "logits row", i);
  check(a.starts[0], 0, 1, "first row", 0);
  check(a.starts[a.sequences], a.rows, a.rows + 1, "last row", a.sequences);
  check(int64_t(tables_.pages.size()), int64_t(groups.size()), int64_t(groups.size()) + 1, "number of page tables", 0);
  int table_rows = INT_MAX, columns = INT_MAX;
  for (const PageTable& t : tables_.pages)
    table_rows = std::min(table_rows, t.rows), columns = std::min(columns, t.columns);
  const bool tagged = !tables_.expected.empty();
  for (const GroupLimits& group : groups) check(group.held.tags != nullptr, tagged, tagged + 1, "page tags", 0);
  const auto expectations = int64_t(tables_.expected.size());
  if (tagged) check(expectations, int64_t(groups.size()), int64_t(groups.size()) + 1, "expectations", 0);
  check(a.readers != nullptr, tagged, tagged + 1, "readers", 0);
  if (tagged && int(null_pages_.size()) < columns) null_pages_.assign(columns, 0);
  sequences_.clear();
  faulty_.clear();
  for (int i = 0; i < a.sequences; i++) {
    check(a.starts[i + 1], int64_t(a.starts[i]) + 1, int64_t(a.rows) + 1, "row", i + 1);
    check(a.slots[i], 0, table_rows, "slot", i);
    const int rows = a.starts[i + 1] - a.starts[i];
    const int64_t most = std::min(int64_t(limits.max_positions), int64_t(columns) * limits.page_size) - rows;
    check(a.contexts[i], 0, most + 1, "context", i);
    const int count = (a.contexts[i] + rows + limits.page_size - 1) / limits.page_size;
    SequenceRows sequence{a.starts[i], rows, a.contexts[i], a.starts[i], {}};
    for (size_t g = 0; g < groups.size(); g++) {
      const PageTable& table = tables_.pages[g];
      const int32_t* pages = table.pages + size_t(a.slots[i]) * table.columns;
      const int first = first_seen(a.contexts[i], groups[g].window) / limits.page_size;
      for (int p = first; p < count && !tagged; p++) check(pages[p], 0, groups[g].num_pages, "page", p);
      sequence.pages[g] = pages;
    }
    sequences_.push_back(sequence);
  }
  arrays_ = a;
  if (tagged) take_out_faulty(limits.page_size, groups);
}

void Step::take_out_faulty(int page_size, const std::vector<GroupLimits>& groups) {
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < arrays_.sequences; i++) {
    SequenceRows& s = sequences_[i];
    const int written = s.context / page_size, end = (s.context + s.rows + page_size - 1) / page_size;
    bool holds = true;
    for (size_t g = 0; g < groups.size() && holds; g++) {
      const size_t row = size_t(arrays_.slots[i]) * tables_.pages[g].columns;
      const PageTags expected{tables_.expected[g].tags + row, tables_.expected[g].owners + row};
      const int first = first_seen(s.context, groups[g].window) / page_size;
      holds = holds_pages(s.pages[g], expected, groups[g], first, written, end, arrays_.readers[i]);
    }
    if (holds) continue;
    faulty_.push_back(i);
    for (size_t g = 0; g < groups.size(); g++) s.pages[g] = null_pages_.data();
  }
  check_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace trimaran
