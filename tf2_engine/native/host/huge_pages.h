// Moves tables to huge pages, on Linux.
//
// Rows are read in random order, and with small pages nearly every read waits for the address of
// its page. If the system creates huge pages on request (the setting "madvise" or "always"),
// existing memory is moved to huge pages in place. This takes about a second per GB, once.
// Contents, address and size stay the same. Before Linux 6.1 this is not possible, and tables are
// not moved.

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

namespace estimator_bridge {

// The huge pages of a buffer. The first and the last page also contain other memory; they are left
// out if they are a large part of all pages.
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

// Whether the system can make huge pages of existing memory.
inline bool HasHugePages() {
  static const bool has = [] {
    std::string setting;
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    return std::getline(file, setting) && setting.find("[never]") == std::string::npos &&
           madvise(nullptr, 0, kCollapse) == 0;  // asks for nothing, but fails if unknown
  }();
  return has;
}

// Moves some pages of a range, each separately. Moving a page may fail if there is not enough
// contiguous memory, or, for the first and last page, if the page is not entirely in the buffer's
// mapping. Such failures do no harm.
inline void MakeHuge(const HugeRange& range, int64_t first, int64_t count) {
  for (int64_t page = first; page < first + count; ++page) {
    madvise(reinterpret_cast<void*>(range.begin + static_cast<uintptr_t>(page) * range.kPage),
            range.kPage, kCollapse);
  }
}

}  // namespace estimator_bridge
