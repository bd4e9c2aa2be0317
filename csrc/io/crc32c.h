// CRC-32C (Castagnoli), the checksum of checkpoint files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds::io {

/// Extends `crc` (initially 0) by `bytes` of data and returns it. crc32c(crc32c(0, a), b) is the
/// checksum of a followed by b. Uses the CPU's instruction if there is one. Source: RFC 3720,
/// appendix B.4.
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);

/// Like crc32c(), by a table on all machines. Tests compare the instruction with it.
uint32_t crc32c_by_table(uint32_t crc, const void* data, size_t bytes);

}  // namespace ds::io
