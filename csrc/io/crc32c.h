// CRC-32C (Castagnoli), the checksum of checkpoint files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds::io {

/// Extends `crc` (0 to start) by `bytes` of data: crc32c(crc32c(0, a), b) is the checksum of a and
/// then b. Uses the processor's instruction if available. Source: RFC 3720, appendix B.4.
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);

/// The same by table, on every machine: the instruction's oracle.
uint32_t crc32c_by_table(uint32_t crc, const void* data, size_t bytes);

}  // namespace ds::io
