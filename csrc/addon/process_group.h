// Stores, jobs and process groups for JavaScript.
#pragma once

#include <string>

#include "entry.h"

namespace ds::comm {
class StoreServer;
}

namespace ds::addon {

struct JobRef;
struct GroupRef;
template <>
HandleTable<comm::StoreServer>& table_of(Addon& addon);
template <>
HandleTable<JobRef>& table_of(Addon& addon);
template <>
HandleTable<GroupRef>& table_of(Addon& addon);

/// Starts the server of a job's key-value store at `host`. Port 0 selects a free port. Throws
/// DS_COMM.
DS_ENTRY double start_store(Addon& addon, std::string host, Port port, std::string secret);
DS_ENTRY double store_port(Addon& addon, Handle<comm::StoreServer> store);
DS_ENTRY void stop_store(Addon& addon, Handle<comm::StoreServer> store);

/// Resolves with a job when the store has accepted this rank. `place` is [rank, size]; `timeout` is
/// in milliseconds. Rejects with DS_COMM.
DS_ENTRY Promise<double> join_job(Addon& addon, std::string host, Port port, std::string secret,
                                  Integers place, Timeout timeout);
/// Shares a job with another environment: offer it here, take it there. That environment may use
/// the job's store but does not close the job. leave_job waits, within the job's timeout, until
/// that environment has ended or the offer was withdrawn.
DS_ENTRY double offer_job(Addon& addon, Handle<JobRef> job);
DS_ENTRY double take_job(Addon& addon, OfferNumber offer);
DS_ENTRY void withdraw_job(Addon& addon, OfferNumber offer);
/// Throws the job's failure if it has one.
DS_ENTRY void check_job(Addon& addon, Handle<JobRef> job);
/// Blocks until this rank's collectives have ended. Resolves when all ranks have called it.
DS_ENTRY Promise<void> leave_job(Addon& addon, Handle<JobRef> job);
/// Closes the job and its groups, and clears its failure.
DS_ENTRY void close_job(Addon& addon, Handle<JobRef> job);

/// Requests to the job's store. Values are text.
DS_ENTRY Promise<void> store_set(Addon& addon, Handle<JobRef> job, std::string key,
                                 std::string value);
DS_ENTRY Promise<std::string> store_get(Addon& addon, Handle<JobRef> job, std::string key,
                                        Timeout timeout);
DS_ENTRY Promise<double> store_add(Addon& addon, Handle<JobRef> job, std::string key, Step step);
DS_ENTRY Promise<std::string> store_compare_set(Addon& addon, Handle<JobRef> job, std::string key,
                                                std::string expected, std::string desired);
DS_ENTRY Promise<bool> store_delete(Addon& addon, Handle<JobRef> job, std::string key);
/// Resolves with the keys, one per line.
DS_ENTRY Promise<std::string> store_keys(Addon& addon, Handle<JobRef> job, std::string prefix);
DS_ENTRY Promise<double> store_waiters(Addon& addon, Handle<JobRef> job, std::string key);

/// Resolves with a group when all members have called it. `ranks` are ranks of the job;
/// `ranks[rank]` is this rank. Rejects with DS_COMM or DS_LIBRARY.
DS_ENTRY Promise<double> open_group(Addon& addon, Handle<JobRef> job,
                                    Handle<StreamRef> device_stream, std::string name,
                                    Integers ranks, RankNumber rank);

/// Starts a collective and returns its ticket. The argument block is [kind, op, dtype, count, peer,
/// input handle, input offset, output handle, output offset]. Offsets are in elements; handle 0
/// means no memory. Ranks with different `purpose` fail, as with different ops. Only messages use
/// `label`.
DS_ENTRY double start_collective(Addon& addon, Handle<GroupRef> group, Handle<StreamRef> stream,
                                 std::string purpose, std::string label);
/// Sends an error record instead of the group's next collective. The other ranks receive `error`,
/// unless they send an error record too. Blocks until the store has the record.
DS_ENTRY void give_up_collective(Addon& addon, Handle<GroupRef> group, std::string error);
DS_ENTRY void wait_collective(Addon& addon, Handle<GroupRef> group, Ticket ticket,
                              Handle<StreamRef> stream);
DS_ENTRY void synchronize_collective(Addon& addon, Handle<GroupRef> group, Ticket ticket);
DS_ENTRY bool collective_done(Addon& addon, Handle<GroupRef> group, Ticket ticket);

/// Returns hexadecimal digits. Exported for a test with published values.
DS_ENTRY std::string hmac_sha256(Addon& addon, Bytes key, Bytes data);

}  // namespace ds::addon
