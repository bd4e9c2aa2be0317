// Explains why Linux refuses io_uring to this process, from files of /proc.

interface KernelFacts {
  /** Kernel release as `uname -r` prints it: "6.1.0-18-amd64". */
  release: string;
  /** Text of /proc/sys/kernel/io_uring_disabled; null before Linux 6.6. */
  disabled: string | null;
  /** Text of /proc/self/status. */
  status: string;
}

/** Returns the most likely reason. The caller has found that io_uring is refused. */
export function explainUringRefusal({ release, disabled, status }: KernelFacts): string {
  const [major = 0, minor = 0] = release.split('.').map((part) => Number.parseInt(part, 10));
  if (major < 5 || (major === 5 && minor < 6)) return `Linux ${release} is older than 5.6`;
  const setting = disabled?.trim() ?? '0';
  if (setting === '2') return 'the sysctl kernel.io_uring_disabled is 2';
  if (setting === '1' && !hasAdminCapability(status))
    return 'the sysctl kernel.io_uring_disabled is 1: only its group may use io_uring';
  if (/^Seccomp:\s*2$/m.test(status))
    return "the container's seccomp filter forbids it (Docker: --security-opt seccomp=...)";
  return 'the kernel was built without it, or the limit of locked memory is too low';
}

/** Returns whether the process has CAP_SYS_ADMIN, bit 21 of the effective capabilities. */
function hasAdminCapability(status: string): boolean {
  const capabilities = /^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1] ?? '0';
  return ((BigInt(`0x${capabilities}`) >> 21n) & 1n) === 1n;
}
