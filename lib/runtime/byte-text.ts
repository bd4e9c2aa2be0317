// Formats byte counts.

/** Formats bytes in MiB: "812.0 MiB". */
export const mebibytes = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

/** Formats bytes in GiB: "1.5 GiB". */
export const gibibytes = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

/** Returns "812.0 MiB" below 1 GiB, and "1.5 GiB" above. */
export const byteText = (bytes: number): string =>
  bytes < 2 ** 30 ? mebibytes(bytes) : gibibytes(bytes);
