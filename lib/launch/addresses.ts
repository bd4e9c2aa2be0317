// Addresses of nodes: whether a host is this machine, and where the ranks of a job meet.
import { lookup } from 'node:dns/promises';
import { createServer } from 'node:net';
import { hostname, networkInterfaces } from 'node:os';

import { refuse } from './argument-error.js';

const LOOPBACK = /^(127\.|::1$|localhost$)/;

/** Returns whether `host` names this machine; "user@host" never does. */
export async function isThisMachine(host: string): Promise<boolean> {
  if (LOOPBACK.test(host) || host === hostname()) return true;
  const address = await addressOf(host);
  return address !== null && (LOOPBACK.test(address) || ownAddresses().includes(address));
}

/**
 * Returns the address of `host` for other nodes. Throws DS_ARGUMENT if the address is unknown:
 * other nodes cannot use a name of ssh's configuration or of the loopback interface.
 */
export async function reachableAddress(host: string): Promise<string> {
  const address = await addressOf(host.replace(/^.*@/, ''));
  if (address !== null && !LOOPBACK.test(address)) return address;
  const ownAddress = (await isThisMachine(host)) ? ownAddresses()[0] : undefined;
  return (
    ownAddress ?? refuse('--master_addr', `the address of ${host}`, 'none', 'Pass --master_addr.')
  );
}

async function addressOf(host: string): Promise<string | null> {
  try {
    return (await lookup(host.replace(/^\[(.*)\]$/, '$1'))).address;
  } catch {
    return null;
  }
}

/** Addresses of interfaces to other machines, IPv4 first. */
function ownAddresses(): string[] {
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  const outer = all.filter(({ internal }) => !internal);
  return [
    ...outer.filter(({ family }) => family === 'IPv4'),
    ...outer.filter(({ family }) => family !== 'IPv4'),
  ].map(({ address }) => address);
}

/** First and last port to try. Systems give higher ports to outgoing connections. */
const PORTS = { first: 20_000, count: 12_000 };

/**
 * Returns a free port of `host`. The search starts at a random port, so two jobs rarely choose the
 * same.
 */
export async function freePort(host: string): Promise<number> {
  const start = Math.floor(Math.random() * PORTS.count);
  for (let i = 0; i < PORTS.count; i++) {
    const port = PORTS.first + ((start + i) % PORTS.count);
    if (await canListen(host, port)) return port;
  }
  return refuse('--master_port', 'a free port on this machine', 'none', 'Pass --master_port.');
}

function canListen(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen(port, host, () => server.close(() => resolve(true)));
  });
}
