// The memory that packed weights lie in: taken here and packed into, or lent, where they have been packed before.
#pragma once
#include "memory.h"

namespace trimaran {

class WeightMemory {
 public:
  explicit WeightMemory(size_t bytes) : own_(bytes), data_(own_.data()), bytes_(bytes) {}
  // Memory of somebody else, who keeps it for as long as this lives; never written to.
  WeightMemory(const uint8_t* lent, size_t bytes) : data_(const_cast<uint8_t*>(lent)), bytes_(bytes), lent_(true) {}

  // The next part, aligned to cache lines: the same one for the same parts before it, whoever owns the memory.
  template <class T>
  T* take(size_t count) {
    const size_t bytes = Arena::padded(count * sizeof(T));
    if (used_ + bytes > bytes_) throw std::bad_alloc();
    T* p = reinterpret_cast<T*>(data_ + used_);
    used_ += bytes;
    return p;
  }
  // Whether what take() gives is packed already.
  bool lent() const { return lent_; }
  const uint8_t* data() const { return data_; }
  size_t used() const { return used_; }

 private:
  HugeMemory own_;
  uint8_t* data_;
  size_t bytes_, used_ = 0;
  bool lent_ = false;
};

}  // namespace trimaran
