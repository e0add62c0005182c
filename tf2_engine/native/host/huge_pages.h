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

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

namespace estimator_bridge {

// The huge pages that a buffer lies in. The first and the last one hold other memory as well; they
// are left out where they would be much beside the others.
struct HugeRange {
  static constexpr uintptr_t kPage = uintptr_t{1} << 21;
  static constexpr uintptr_t kMany = 4;

  HugeRange(const void* data, size_t size)
      : begin((reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage),
        end((reinterpret_cast<uintptr_t>(data) + size) / kPage * kPage) {
    if (begin + kMany * kPage > end) return;
    begin = reinterpret_cast<uintptr_t>(data) / kPage * kPage;
    end = (reinterpret_cast<uintptr_t>(data) + size + kPage - 1) / kPage * kPage;
  }
  int64_t count() const { return begin < end ? static_cast<int64_t>((end - begin) / kPage) : 0; }

  uintptr_t begin, end;
};

constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers do not have

// Whether the system makes huge pages of memory that is there already.
inline bool HasHugePages() {
  static const bool has = [] {
    std::string setting;
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    return std::getline(file, setting) && setting.find("[never]") == std::string::npos &&
           madvise(nullptr, 0, kCollapse) == 0;  // asks for nothing, but fails if unknown
  }();
  return has;
}

// Moves some pages of a range, each by itself: one fails where there is not enough memory in one
// piece, and the first and the last where they are not all of the buffer's mapping. That does no harm.
inline void MakeHuge(const HugeRange& range, int64_t first, int64_t count) {
  for (int64_t page = first; page < first + count; ++page) {
    madvise(reinterpret_cast<void*>(range.begin + static_cast<uintptr_t>(page) * range.kPage),
            range.kPage, kCollapse);
  }
}

}  // namespace estimator_bridge

#endif  // TF2_ENGINE_NATIVE_HOST_HUGE_PAGES_H_
