// Tests the choice of a free port.
import { createServer } from 'node:net';

import { findFreePort } from '../../lib/launch/addresses.js';

test('a used port is skipped for the next one', async () => {
  jest.spyOn(Math, 'random').mockReturnValue(0);
  const server = createServer();
  // Another process may hold the port: then it is taken as well.
  await new Promise<void>((resolve) => {
    server.once('error', () => resolve());
    server.listen(20_000, '127.0.0.1', resolve);
  });
  try {
    const port = await findFreePort('127.0.0.1');
    expect(port > 20_000 && port < 32_000).toBe(true);
  } finally {
    jest.restoreAllMocks();
    server.close();
  }
});

test('an address that is not of this machine has no free port', async () => {
  await expect(findFreePort('192.0.2.1')).rejects.toThrow(
    /--master_port: expected a free port on this machine, got none\. Pass --master_port/,
  );
});
