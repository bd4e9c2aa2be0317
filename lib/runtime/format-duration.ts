// Formats durations for progress lines.

/** Formats seconds as "0:09", "12:34" or "1:02:03". */
export function formatDuration(seconds: number): string {
  const total = Math.round(seconds);
  const padTwo = (value: number): string => `${value}`.padStart(2, '0');
  const [hours, minutes] = [Math.floor(total / 3600), Math.floor(total / 60) % 60];
  return hours > 0
    ? `${hours}:${padTwo(minutes)}:${padTwo(total % 60)}`
    : `${minutes}:${padTwo(total % 60)}`;
}
