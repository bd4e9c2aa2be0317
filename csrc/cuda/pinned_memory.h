// Page-locked host memory on huge pages, which the GPU can reach at full bandwidth.
#pragma once

#include <cstddef>

namespace ds::cuda {

/// Zero-filled memory of `bytes` rounded up to pages (at least one), registered with every GPU of
/// the process. Uses 2 MiB pages if the system has them: registering 2 GiB then takes 0.05 s
/// instead of 0.4 s. Throws DS_OUT_OF_MEMORY if the host has too little memory or a lower limit on
/// locked memory.
void* allocate_pinned_pages(size_t bytes);

/// Undoes allocate_pinned_pages of the same `bytes`. The GPU must have finished with the memory.
/// Never throws, because owners call it while they are destroyed.
void release_pinned_pages(void* data, size_t bytes);

}  // namespace ds::cuda
