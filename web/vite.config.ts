import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [react()],
  // Relative addresses: the page also works behind a proxy under a path of its own.
  base: "./",
  build: {
    outDir: "../src/query2particles/serve/static",
    emptyOutDir: true,
    // The server's content security policy allows files of its own origin only, so nothing may become a data: address.
    assetsInlineLimit: 0,
    // The licences of what is bundled ask to be passed on with it.
    license: { fileName: "licences.txt" },
  },
  // `npm run dev` beside a running `q2p serve`.
  server: { proxy: { "/v1": "http://127.0.0.1:8000" } },
});
