// Tests the range of ports of the launcher's options.
import { takeLaunchOptions } from '../../lib/launch/launch-options.js';

const optionsOf = (port: string) => takeLaunchOptions(['--master_port', port], null);

test.each(['1', '29500', '65535'])('--master_port %s is accepted', (port) => {
  expect(optionsOf(port).options).toMatchObject({ master_port: Number(port) });
});

test.each(['0', '65536', '-1', 'x'])('--master_port %s is refused', (port) => {
  expect(() => optionsOf(port)).toThrow();
});
