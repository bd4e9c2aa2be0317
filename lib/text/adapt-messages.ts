// Adapts messages to a chat template: roles and fields with other names, and fields without effect.
import type { ChatMessage } from './chat-template.js';

/** Fields of earlier answers, and marks for caches, that clients send. No template reads them. */
export const CLIENT_FIELDS: ReadonlySet<string> = new Set([
  'id',
  'cache_control',
  'reasoning_details',
  'thinking_blocks',
  'refusal',
  'annotations',
  'parsed',
  'token_ids',
  'provider_specific_fields',
]);

/**
 * Returns a function that adapts messages to `template`. Templates drop messages with unknown
 * roles, and "developer" is the newer name of "system". The template of gpt-oss reads `thinking`
 * instead of `reasoning_content`.
 */
export function messageAdapter(template: string): (message: ChatMessage) => ChatMessage {
  const knowsDevelopers = template.includes('developer');
  const readsThinking = /\.thinking\b/.test(template) && !template.includes('reasoning_content');
  return (message) => {
    const { role, reasoning_content: thought } = message;
    const isDeveloper = role === 'developer' && !knowsDevelopers;
    const thinkingField = readsThinking && thought !== undefined ? { thinking: thought } : {};
    return { ...message, ...(isDeveloper && { role: 'system' }), ...thinkingField };
  };
}
