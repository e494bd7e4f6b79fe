// Page-aligned memory on 2 MiB pages where the system has them: streaming weights walks no page tables then.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace trimaran {

// Owns one zero-filled mapping; only pages that were touched take memory.
class HugeMemory {
 public:
  HugeMemory() = default;
  explicit HugeMemory(size_t bytes) {
    if (bytes == 0) return;
    mapped_ = (bytes + kHuge - 1) / kHuge * kHuge + kHuge;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) {
      base_ = nullptr;
      throw std::bad_alloc();
    }
    const auto aligned = (reinterpret_cast<uintptr_t>(base_) + kHuge - 1) / kHuge * kHuge;
    data_ = reinterpret_cast<uint8_t*>(aligned);
    bytes_ = bytes;
#ifdef MADV_HUGEPAGE
    madvise(data_, mapped_ - kHuge, MADV_HUGEPAGE);
#endif
  }
  HugeMemory(HugeMemory&& other) noexcept { *this = std::move(other); }
  HugeMemory& operator=(HugeMemory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(mapped_, other.mapped_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HugeMemory() {
    if (base_) munmap(base_, mapped_);
  }

  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  static constexpr size_t kHuge = size_t(2) << 20;
  void* base_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t mapped_ = 0, bytes_ = 0;
};

// Hands out cache-line-aligned pieces of one mapping whose size was summed up beforehand.
class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t bytes) : memory_(bytes) {}

  static constexpr size_t padded(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

  template <class T>
  T* take(size_t count) {
    const size_t bytes = padded(count * sizeof(T));
    if (used_ + bytes > memory_.size()) throw std::bad_alloc();
    T* p = reinterpret_cast<T*>(memory_.data() + used_);
    used_ += bytes;
    return p;
  }
  size_t used() const { return used_; }

 private:
  static constexpr size_t kLine = 128;
  HugeMemory memory_;
  size_t used_ = 0;
};

}  // namespace trimaran
