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

/// Serves a job's key-value store on exactly `host`; port 0 selects a free one. Throws DS_COMM.
DS_ENTRY double start_store(Addon& addon, std::string host, Port port, std::string secret);
DS_ENTRY double store_port(Addon& addon, Handle<comm::StoreServer> store);
DS_ENTRY void stop_store(Addon& addon, Handle<comm::StoreServer> store);

/// Resolves with a job once the store has accepted this rank. `place` is [rank, size] as int32,
/// `timeout` in milliseconds. Rejects with DS_COMM.
DS_ENTRY Promise<double> join_job(Addon& addon, std::string host, Port port, std::string secret,
                                  Integers place, Timeout timeout);
/// The same job in another environment, which may use its store but does not close it: offer it
/// here, take it there. leave_job waits, within the job's timeout, until that environment has ended
/// or the offer was withdrawn.
DS_ENTRY double offer_job(Addon& addon, Handle<JobRef> job);
DS_ENTRY double take_job(Addon& addon, OfferNumber offer);
DS_ENTRY void withdraw_job(Addon& addon, OfferNumber offer);
/// Throws the job's failure, if there is one.
DS_ENTRY void check_job(Addon& addon, Handle<JobRef> job);
/// Blocks until this rank's collectives have ended, then resolves when every rank has called it.
DS_ENTRY Promise<void> leave_job(Addon& addon, Handle<JobRef> job);
/// Closes the job and its groups, and clears its failure.
DS_ENTRY void close_job(Addon& addon, Handle<JobRef> job);

/// Requests to the store, as promises. Values are text.
DS_ENTRY Promise<void> store_set(Addon& addon, Handle<JobRef> job, std::string key,
                                 std::string value);
DS_ENTRY Promise<std::string> store_get(Addon& addon, Handle<JobRef> job, std::string key,
                                        Timeout timeout);
DS_ENTRY Promise<double> store_add(Addon& addon, Handle<JobRef> job, std::string key, Step step);
DS_ENTRY Promise<std::string> store_compare_set(Addon& addon, Handle<JobRef> job, std::string key,
                                                std::string expected, std::string desired);
DS_ENTRY Promise<bool> store_delete(Addon& addon, Handle<JobRef> job, std::string key);
/// One key a line.
DS_ENTRY Promise<std::string> store_keys(Addon& addon, Handle<JobRef> job, std::string prefix);
DS_ENTRY Promise<double> store_waiters(Addon& addon, Handle<JobRef> job, std::string key);

/// Resolves with a group once every member has called this. `ranks` are int32 ranks of the job;
/// `ranks[rank]` is this rank. Rejects with DS_COMM or DS_LIBRARY.
DS_ENTRY Promise<double> open_group(Addon& addon, Handle<JobRef> job,
                                    Handle<StreamRef> device_stream, std::string name,
                                    Integers ranks, RankNumber rank);

/// Starts the collective that the argument block describes: [kind, op, dtype, count, peer, input
/// handle, input offset, output handle, output offset]; offsets are in elements, handle 0 means no
/// memory. Ranks with different `purpose` fail as for different ops; only messages use `label`.
/// Returns a ticket.
DS_ENTRY double start_collective(Addon& addon, Handle<GroupRef> group, Handle<StreamRef> stream,
                                 std::string purpose, std::string label);
/// Issues an error record in place of the group's next collective. The other ranks receive `error`,
/// unless they issue an error record too. Blocks until the store has the record.
DS_ENTRY void give_up_collective(Addon& addon, Handle<GroupRef> group, std::string error);
DS_ENTRY void wait_collective(Addon& addon, Handle<GroupRef> group, Ticket ticket,
                              Handle<StreamRef> stream);
DS_ENTRY void synchronize_collective(Addon& addon, Handle<GroupRef> group, Ticket ticket);
DS_ENTRY bool collective_done(Addon& addon, Handle<GroupRef> group, Ticket ticket);

/// Hexadecimal; exported for a test against published values.
DS_ENTRY std::string hmac_sha256(Addon& addon, Bytes key, Bytes data);

}  // namespace ds::addon
