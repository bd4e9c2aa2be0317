// For systems without io_uring: returns no engine, so the thread engine is used.
#include "file_engine.h"

namespace ds::io {

std::unique_ptr<FileEngine> make_uring_engine(const EngineOptions&) { return nullptr; }

}  // namespace ds::io
