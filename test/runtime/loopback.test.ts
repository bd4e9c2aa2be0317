// Tests which hosts and addresses count as this machine's loopback interface.
import { isLoopback } from '../../lib/runtime/loopback.js';

test.each(['localhost', '127.0.0.1', '127.255.0.7', '::1', '[::1]'])('%s is loopback', (host) => {
  expect(isLoopback(host)).toBe(true);
});

test.each([
  '',
  '0.0.0.0',
  '::',
  '::2',
  '127.0.0.256',
  '127.0.0',
  '127.0.0.1.example',
  'localhost.',
])('"%s" is not loopback', (host) => {
  expect(isLoopback(host)).toBe(false);
});
