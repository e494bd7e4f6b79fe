#include "prefix.h"

#include <algorithm>
#include <utility>

namespace trimaran {

// Items [first, end) share their first `depth` pages: finds how many they all share, and parts them by the page after.
void PrefixOrder::sort(int first, int end, int depth) {
  if (end - first < 2) return;
  const Item one = items_[first];
  int same = one.full;
  for (int i = first + 1; i < end; i++) {
    const int most = std::min(same, items_[i].full);
    same = int(std::mismatch(one.pages + depth, one.pages + most, items_[i].pages + depth).first - one.pages);
  }
  const auto next = [same](const Item& item) { return item.full > same ? item.pages[same] : -1; };  // -1: it ends
  std::sort(items_.begin() + first, items_.begin() + end, [&](const Item& a, const Item& b) {
    return std::pair(next(a), a.sequence) < std::pair(next(b), b.sequence);
  });
  for (int i = first; i < end; i++) items_[i].shared = i == first ? one.shared : same;
  for (int begin = first, i = first + 1; i <= end; i++) {
    if (i < end && next(items_[i]) == next(items_[begin])) continue;
    if (next(items_[begin]) >= 0) sort(begin, i, same + 1);
    begin = i;
  }
}

}  // namespace trimaran
