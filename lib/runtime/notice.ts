// Notices of settings without effect, and of choices that the package made.

/** Emits the warning DS_NOTICE. */
export function notice(text: string): void {
  process.emitWarning(text, { type: 'DsNotice', code: 'DS_NOTICE' });
}
