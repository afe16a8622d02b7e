package android.os;

public class Handler {
    public Handler(Looper looper) {}
    public final boolean postDelayed(Runnable task, long delayMs) { return Looper.FAKE_QUEUE.add(task); }
}
