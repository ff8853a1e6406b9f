// Components of our web applications.

export { default as Badge } from './Badge.svelte';
export { default as Button } from './Button.svelte';
export { default as Chart } from './Chart.svelte';
export { default as Dialog } from './Dialog.svelte';
export { default as Empty } from './Empty.svelte';
export { default as Field } from './Field.svelte';
export { default as Nav } from './Nav.svelte';
export { default as Notice } from './Notice.svelte';
export { default as Panel } from './Panel.svelte';
export { default as Progress } from './Progress.svelte';
export { default as Sparkline } from './Sparkline.svelte';
export { default as Spinner } from './Spinner.svelte';
export { default as Table } from './Table.svelte';
export { default as Tabs } from './Tabs.svelte';
export { default as ThemeToggle } from './ThemeToggle.svelte';
export { chooseTheme, chosenTheme, type Theme } from './theme';
