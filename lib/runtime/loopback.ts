// Recognizes addresses of this machine's loopback interface.

/** Returns whether a host or an address is loopback. */
export function isLoopback(host: string): boolean {
  if (host === 'localhost' || host === '[::1]' || host === '::1') return true;
  const bytes = /^127\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(host)?.slice(1) ?? [];
  return bytes.length > 0 && bytes.every((byte) => Number(byte) < 256);
}
