// Transport over Gloo's TCP pairs: a full mesh, one unbound buffer per message.
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "../../core/error.h"
#include "entry.h"

namespace ds::comm {
namespace {

/// No wait of Gloo may end by its own clock: the watchdog decides, and aborts.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

/// The job's store as Gloo's rendezvous wants it.
class RendezvousStore final : public ::gloo::rendezvous::Store {
 public:
  explicit RendezvousStore(const Rendezvous& request) : request_(request) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    request_.set(key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = request_.get(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) request_.get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  const Rendezvous& request_;
};

[[noreturn]] void fail(const std::string& got) {
  throw Error("DS_COMM", "Gloo", "a connection to every rank of the group", got,
              "Check that the ranks reach each other's addresses, and the output of the other "
              "ranks.");
}

class GlooTransport final : public Transport {
 public:
  explicit GlooTransport(const Rendezvous& request)
      : context_(std::make_shared<::gloo::rendezvous::Context>(request.rank, request.size)) {
    ::gloo::transport::tcp::attr where;
    where.hostname = request.local_host;
    std::shared_ptr<::gloo::transport::Device> device = ::gloo::transport::tcp::CreateDevice(where);
    RendezvousStore store(request);
    context_->setTimeout(std::chrono::milliseconds(request.timeout_ms));
    context_->connectFullMesh(store, device);
  }

  void exchange(const std::vector<Transfer>& transfers) override {
    try {
      post(transfers);
      for (size_t i = 0; i < transfers.size(); ++i) {
        const bool complete = transfers[i].sending ? buffers_[i]->waitSend(kForever)
                                                   : buffers_[i]->waitRecv(kForever);
        if (!complete) break;  // interrupted
      }
      finish();
    } catch (const ::gloo::Exception& error) {
      finish();
      fail(error.what());
    }
    if (aborted_.load()) fail("an aborted collective");
  }

  void interrupt() noexcept override {
    std::lock_guard lock(mutex_);
    aborted_.store(true);
    for (const auto& buffer : buffers_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }

 private:
  /// Receives first, so that data has a place to go when it comes.
  void post(const std::vector<Transfer>& transfers) {
    std::lock_guard lock(mutex_);
    if (aborted_.load()) fail("an aborted collective");
    for (const Transfer& t : transfers) {
      buffers_.push_back(context_->createUnboundBuffer(t.data, t.bytes));
    }
    for (size_t i = 0; i < transfers.size(); ++i) {
      if (!transfers[i].sending) buffers_[i]->recv(transfers[i].peer, transfers[i].tag);
    }
    for (size_t i = 0; i < transfers.size(); ++i) {
      if (transfers[i].sending) buffers_[i]->send(transfers[i].peer, transfers[i].tag);
    }
  }

  void finish() {
    std::lock_guard lock(mutex_);
    buffers_.clear();
  }

  std::shared_ptr<::gloo::rendezvous::Context> context_;
  std::mutex mutex_;  // of buffers_, which interrupt() touches from another thread
  std::vector<std::unique_ptr<::gloo::transport::UnboundBuffer>> buffers_;
  std::atomic<bool> aborted_{false};
};

}  // namespace
}  // namespace ds::comm

int ds_gloo_interface() { return ds::comm::kGlooInterface; }

ds::comm::Transport* ds_gloo_connect(const ds::comm::Rendezvous& request) {
  try {
    return new ds::comm::GlooTransport(request);
  } catch (const ds::Error&) {
    throw;
  } catch (const std::exception& error) {
    ds::comm::fail(error.what());
  }
}
