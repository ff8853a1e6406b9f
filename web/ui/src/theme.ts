// Light, dark or system theme. The choice outlives the page.

export type Theme = 'auto' | 'light' | 'dark';

const THEMES: readonly Theme[] = ['auto', 'light', 'dark'];
const KEY = 'theme';

export function isTheme(text: unknown): text is Theme {
  return THEMES.includes(text as Theme);
}

/** Next theme of the toggle. */
export function nextTheme(theme: Theme): Theme {
  return THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? 'auto';
}

export function chosenTheme(): Theme {
  const stored = read();
  return isTheme(stored) ? stored : 'auto';
}

export function chooseTheme(theme: Theme): void {
  const root = document.documentElement;
  if (theme === 'auto') delete root.dataset['theme'];
  else root.dataset['theme'] = theme;
  write(theme);
}

/** Calls back after possible changes of colours. Returns a function that stops it. */
export function onThemeChange(changed: () => void): () => void {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const chosen = new MutationObserver(changed);
  system.addEventListener('change', changed);
  chosen.observe(document.documentElement, { attributeFilter: ['data-theme'] });
  return () => {
    system.removeEventListener('change', changed);
    chosen.disconnect();
  };
}

// Browsers may forbid storage; the choice then lasts as long as the page.
function read(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function write(theme: Theme): void {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // See `read`.
  }
}
