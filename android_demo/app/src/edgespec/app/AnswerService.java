package edgespec.app;

import android.app.Service;
import android.content.Intent;
import android.os.IBinder;

/**
 * Runs while an answer is generated, and does nothing. Android freezes an app in the background within
 * seconds; with a started service it lets the app work for about a minute more, long enough for most
 * answers, and demands no notification. After that the answer waits until the user comes back.
 */
public final class AnswerService extends Service {
    @Override
    public int onStartCommand(Intent intent, int flags, int startId) { return START_NOT_STICKY; }

    @Override
    public IBinder onBind(Intent intent) { return null; }
}
