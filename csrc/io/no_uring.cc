// The engine of systems without io_uring: none, so threads transfer.
#include "file_engine.h"

namespace ds::io {

std::unique_ptr<FileEngine> make_uring_engine(const EngineOptions&) { return nullptr; }

}  // namespace ds::io
