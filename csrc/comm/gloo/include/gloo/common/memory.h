// Stands in for a header that Gloo's own headers include and Debian's libgloo-dev leaves out: the
// layouts of its references to buffers, nothing else. Found only where the real one is missing.
#pragma once

#include <memory>

namespace gloo {

/// A short-lived hold on an object, which its owner's destructor waits for.
template <class T>
class NonOwningPtr {
  std::shared_ptr<T> pointer_;
};

/// Tells whether the object still lives.
template <class T>
class WeakNonOwningPtr {
  std::weak_ptr<T> pointer_;
};

}  // namespace gloo
