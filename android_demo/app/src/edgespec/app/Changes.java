package edgespec.app;

import android.os.Handler;
import android.os.Looper;

/**
 * Tells the screen, on the main thread, that something it shows has changed: a moment later, so that
 * many tokens become one drawing. Nobody is told while no screen watches.
 */
final class Changes implements Runnable {
    private static final int MOMENT_MS = 50;

    private final Handler main = new Handler(Looper.getMainLooper());
    private boolean pending;
    private Runnable watcher;

    /** May be called from any thread. */
    void tell() {
        synchronized (this) {
            if (pending) {
                return;
            }
            pending = true;
        }
        main.postDelayed(this, MOMENT_MS);
    }

    /** Who is told from now on, or null for nobody. On the main thread. */
    void watch(Runnable watcher) {
        this.watcher = watcher;
    }

    @Override
    public void run() {
        synchronized (this) {
            pending = false;
        }
        if (watcher != null) {
            watcher.run();
        }
    }
}
