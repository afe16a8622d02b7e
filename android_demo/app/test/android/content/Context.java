package android.content;

import android.content.res.Resources;
import java.io.File;

public abstract class Context {
    public static final int MODE_PRIVATE = 0;

    public abstract Resources getResources();

    public abstract File getFilesDir();

    public abstract File getCacheDir();

    public File getExternalFilesDir(String type) {
        return getFilesDir();
    }

    public abstract ComponentName startService(Intent service);

    public abstract boolean stopService(Intent service);

    public final String getString(int id) {
        return getResources().getString(id);
    }

    public final String getString(int id, Object... arguments) {
        return getResources().getString(id, arguments);
    }

    public final int getColor(int id) {
        return getResources().fakeColor(id);
    }

    public SharedPreferences getSharedPreferences(String name, int mode) {
        return new FakePreferences(new File(getFilesDir(), name + ".properties"));
    }

    public ContentResolver getContentResolver() {
        return new ContentResolver();
    }
}
