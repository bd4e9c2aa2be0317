// Stores, jobs and process groups for JavaScript.
#pragma once

#include <string>

#include "convert.h"

namespace ds::addon {

/// Serves a job's key-value store on exactly `host`; port 0 selects a free one. Throws DS_COMM.
double start_store(Addon& addon, std::string host, int32_t port, std::string secret);
double store_port(Addon& addon, double store);
void stop_store(Addon& addon, double store);

/// Resolves with a job once the store has accepted this rank. `place` is [rank, size] as int32,
/// `timeout` in milliseconds. Rejects with DS_COMM.
Promise<double> join_job(Addon& addon, std::string host, int32_t port, std::string secret,
                         Integers place, double timeout);
/// The same job in another environment, which may use its store but does not close it: offer it
/// here, take it there. leave_job waits, within the job's timeout, until that environment has ended
/// or the offer was withdrawn.
double offer_job(Addon& addon, double job);
double take_job(Addon& addon, double offer);
void withdraw_job(Addon& addon, double offer);
/// Throws the job's failure, if there is one.
void check_job(Addon& addon, double job);
/// Blocks until this rank's collectives have ended, then resolves when every rank has called it.
Promise<void> leave_job(Addon& addon, double job);
/// Closes the job and its groups, and clears its failure.
void close_job(Addon& addon, double job);

/// Requests to the store, as promises. Values are text.
Promise<void> store_set(Addon& addon, double job, std::string key, std::string value);
Promise<std::string> store_get(Addon& addon, double job, std::string key, double timeout);
Promise<double> store_add(Addon& addon, double job, std::string key, double step);
Promise<std::string> store_compare_set(Addon& addon, double job, std::string key,
                                       std::string expected, std::string desired);
Promise<bool> store_delete(Addon& addon, double job, std::string key);
/// One key a line.
Promise<std::string> store_keys(Addon& addon, double job, std::string prefix);
Promise<double> store_waiters(Addon& addon, double job, std::string key);

/// Resolves with a group once every member has called this. `ranks` are int32 ranks of the job;
/// `ranks[rank]` is this rank. Rejects with DS_COMM or DS_LIBRARY.
Promise<double> open_group(Addon& addon, double job, double device_stream, std::string name,
                           Integers ranks, int32_t rank);

/// Starts the collective that the argument block describes: [kind, op, dtype, count, peer, input
/// handle, input offset, output handle, output offset]; offsets are in elements, handle 0 means no
/// memory. Ranks with different `purpose` fail as for different ops; only messages use `label`.
/// Returns a ticket.
double start_collective(Addon& addon, double group, double stream, std::string purpose,
                        std::string label);
/// Issues an error record in place of the group's next collective. The other ranks receive `error`,
/// unless they issue an error record too. Blocks until the store has the record.
void give_up_collective(Addon& addon, double group, std::string error);
void wait_collective(Addon& addon, double group, double ticket, double stream);
void synchronize_collective(Addon& addon, double group, double ticket);
bool collective_done(Addon& addon, double group, double ticket);

/// Hexadecimal; exported for a test against published values.
std::string hmac_sha256(Addon& addon, Bytes key, Bytes data);

}  // namespace ds::addon
