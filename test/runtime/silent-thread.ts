// The entry of a pool thread that never reports its start.
setInterval(() => {}, 60_000);
