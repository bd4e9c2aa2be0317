// Stores, jobs and process groups for JavaScript.
#pragma once

#include <string>

#include "convert.h"

namespace ds::addon {

/// Serves a job's key-value store on exactly `host`; port 0 takes a free one. Throws DS_COMM.
double start_store(Addon& addon, std::string host, int32_t port, std::string secret);
double store_port(Addon& addon, double store);
void stop_store(Addon& addon, double store);

/// Resolves with a job once the store has let this rank in. `place` is [rank, size] as int32,
/// `timeout` in milliseconds. Rejects with DS_COMM.
Promise<double> join_job(Addon& addon, std::string host, int32_t port, std::string secret,
                         Integers place, double timeout);
/// The same job in another environment, which asks its store and does not close it: offer it here,
/// take it there. leave_job waits, within the job's timeout, until that environment has ended or
/// the offer was withdrawn.
double offer_job(Addon& addon, double job);
double take_job(Addon& addon, double offer);
void withdraw_job(Addon& addon, double offer);
/// Throws what made the job fail, once it has.
void check_job(Addon& addon, double job);
/// Blocks until this rank's collectives have ended, then resolves when every rank has come so far.
Promise<void> leave_job(Addon& addon, double job);
/// Closes the job and its groups, and forgets its failure.
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

/// Resolves with a group once every member has asked for it. `ranks` are int32 ranks of the job,
/// this one at place `rank`. Rejects with DS_COMM or DS_LIBRARY.
Promise<double> open_group(Addon& addon, double job, double device_stream, std::string name,
                           Integers ranks, int32_t rank);

/// Starts the collective that the argument block describes: [kind, op, dtype, count, peer, input
/// handle, input offset, output handle, output offset], offsets in elements, handle 0 for none.
/// Ranks whose `purpose` differs fail as for another op; `label` is for messages alone. Returns a
/// ticket.
double start_collective(Addon& addon, double group, double stream, std::string purpose,
                        std::string label);
/// In place of the group's next collective this rank has met with `error`, which the others get
/// unless they met with one there too. Blocks until the store knows.
void give_up_collective(Addon& addon, double group, std::string error);
void wait_collective(Addon& addon, double group, double ticket, double stream);
void synchronize_collective(Addon& addon, double group, double ticket);
bool collective_done(Addon& addon, double group, double ticket);

/// Hexadecimal; exported so that it can be checked against published values.
std::string hmac_sha256(Addon& addon, Bytes key, Bytes data);

}  // namespace ds::addon
