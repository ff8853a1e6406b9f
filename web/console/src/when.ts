// Times and durations for people. Clock times are in the browser's time zone.

/** Formats as `2026-03-01 09:00:00`, with milliseconds if `fine`. */
export function moment(millis: number, fine = false): string {
  const at = new Date(millis);
  const two = (value: number) => String(value).padStart(2, '0');
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${day} ${time}${fine ? `.${String(at.getMilliseconds()).padStart(3, '0')}` : ''}`;
}

/** Age: `3 min ago`. */
export function ago(millis: number, now: number): string {
  const seconds = Math.max(0, Math.round((now - millis) / 1000));
  if (seconds < 5) return 'just now';
  return `${length(seconds)} ago`;
}

/** Duration: `42 s`, `5 min`. */
export function length(seconds: number): string {
  if (seconds < 90) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (hours < 36) return `${hours} h`;
  return `${Math.round(hours / 24)} days`;
}

/** Offset from the start: `+12 ms`, `+3.4 s`, `+2 min`. */
export function after(millis: number): string {
  const sign = millis < 0 ? '−' : '+';
  const size = Math.abs(millis);
  if (size < 1000) return `${sign}${size} ms`;
  if (size < 60_000) return `${sign}${(size / 1000).toFixed(1)} s`;
  return `${sign}${length(Math.round(size / 1000))}`;
}

/** Value of an `<input type="datetime-local">`, in milliseconds since 1970. */
export function fromLocal(text: string): number | undefined {
  const millis = new Date(text).getTime();
  return Number.isNaN(millis) ? undefined : millis;
}

export function toLocal(millis: number): string {
  return moment(millis).slice(0, 16).replace(' ', 'T');
}
