import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// `npm run dev` shows this console over a Packetboat that runs somewhere.
const admin = process.env.PACKETBOAT_ADMIN ?? 'http://127.0.0.1:9190';

export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: '../dist/console',
    emptyOutDir: true,
    // The console's page forbids everything but files of its own, `data:` too.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: { '/api': admin, '/metrics': admin, '/readyz': admin },
  },
});
