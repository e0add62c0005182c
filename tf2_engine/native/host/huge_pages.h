// Tables in huge pages, on Linux.
//
// Rows are read in no order, and in small pages nearly every one waits for the address of its page.
// Where the system makes huge pages for those who ask (the setting "madvise" or "always"), memory
// that is there already is moved to them, in place: about a second for a GB, once in its life. What
// it holds, its address and its size stay the same. Systems that cannot (before Linux 6.1) say so,
// and the tables stay as they are.

#ifndef TF2_ENGINE_NATIVE_HOST_HUGE_PAGES_H_
#define TF2_ENGINE_NATIVE_HOST_HUGE_PAGES_H_

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

namespace estimator_bridge {

// The whole huge pages within a buffer.
struct HugeRange {
  static constexpr uintptr_t kPage = uintptr_t{1} << 21;

  HugeRange(const void* data, size_t size)
      : begin((reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage),
        end((reinterpret_cast<uintptr_t>(data) + size) / kPage * kPage) {}
  int64_t count() const { return begin < end ? static_cast<int64_t>((end - begin) / kPage) : 0; }

  uintptr_t begin, end;
};

// Whether the system makes huge pages at all.
inline std::atomic<bool>& HasHugePages() {
  static std::atomic<bool> has([] {
    std::string setting;
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    return std::getline(file, setting) && setting.find("[never]") == std::string::npos;
  }());
  return has;
}

// Moves some pages of a range.
inline void MakeHuge(const HugeRange& range, int64_t first, int64_t count) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers do not have
  if (!HasHugePages()) return;
  void* begin = reinterpret_cast<void*>(range.begin + static_cast<uintptr_t>(first) * range.kPage);
  const size_t size = static_cast<size_t>(count) * range.kPage;
  // It fails where there is not enough memory in one piece, which does no harm.
  if (madvise(begin, size, kCollapse) != 0 && errno == EINVAL) HasHugePages() = false;
}

}  // namespace estimator_bridge

#endif  // TF2_ENGINE_NATIVE_HOST_HUGE_PAGES_H_
