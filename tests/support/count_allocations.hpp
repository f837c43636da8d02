#ifndef KVEVICT_TESTS_SUPPORT_COUNT_ALLOCATIONS_HPP_
#define KVEVICT_TESTS_SUPPORT_COUNT_ALLOCATIONS_HPP_

// A global operator new that counts on the thread that asks for it, while it asks. To be included
// by one file of a program.

#include <cstddef>
#include <cstdlib>
#include <new>

namespace kvevict_test {
namespace detail {

inline thread_local bool counts_allocations = false;
inline thread_local std::size_t num_allocations = 0;
inline thread_local std::size_t num_bytes = 0;

inline void* counted(void* memory, std::size_t size) noexcept {
  if (counts_allocations && memory != nullptr) {
    ++num_allocations;
    num_bytes += size;
  }
  return memory;
}
inline void* or_throw(void* memory) {
  if (memory == nullptr)
    throw std::bad_alloc();
  return memory;
}

}  // namespace detail

/// Counts the allocations of this thread as long as it lives; one at a time.
class CountedAllocations {
 public:
  CountedAllocations() noexcept {
    detail::num_allocations = 0;
    detail::num_bytes = 0;
    detail::counts_allocations = true;
  }
  CountedAllocations(const CountedAllocations&) = delete;
  CountedAllocations& operator=(const CountedAllocations&) = delete;
  ~CountedAllocations() { stop(); }

  /// Counts no more; returns how many there were.
  std::size_t stop() noexcept {
    detail::counts_allocations = false;
    return detail::num_allocations;
  }
  [[nodiscard]] static std::size_t bytes() noexcept { return detail::num_bytes; }
};

}  // namespace kvevict_test

// The array forms of the standard library end here; so would its nothrow form, but sanitizers bring
// one of their own. Inlined, new and delete would show the compiler a free() of what operator new
// gave.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return kvevict_test::detail::counted(std::malloc(size == 0 ? 1 : size), size);
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  return kvevict_test::detail::or_throw(operator new(size, std::nothrow));
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  using namespace kvevict_test::detail;
  return or_throw(counted(std::aligned_alloc(align, (size + align - 1) / align * align), size));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

#endif  // KVEVICT_TESTS_SUPPORT_COUNT_ALLOCATIONS_HPP_
