import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// Packetboat behind the console of `npm run dev`.
const admin = process.env.PACKETBOAT_ADMIN ?? 'http://127.0.0.1:9190';

export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: '../dist/console',
    emptyOutDir: true,
    // The page's Content-Security-Policy allows its own files only, so no `data:` either.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: { '/api': admin, '/metrics': admin, '/readyz': admin },
  },
});
