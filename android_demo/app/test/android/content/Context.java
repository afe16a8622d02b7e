package android.content;

import android.content.res.Resources;
import java.io.File;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;

public class Context {
    /** Names of the running services. */
    public final Set<String> fakeServices = Collections.synchronizedSet(new HashSet<>());
    private Resources resources;
    private File folder;

    public void fakeAttach(File folder, Resources resources) {
        this.folder = folder;
        this.resources = resources;
    }

    public Resources getResources() { return resources; }
    public File getFilesDir() { return folder; }
    public File getCacheDir() { return folder; }
    public File getExternalFilesDir(String type) { return folder; }

    public ComponentName startService(Intent service) {
        fakeServices.add(service.fakeComponent);
        return new ComponentName();
    }

    public boolean stopService(Intent service) { return fakeServices.remove(service.fakeComponent); }
    public final String getString(int id) { return resources.getString(id); }
    public final String getString(int id, Object... arguments) { return resources.getString(id, arguments); }
    public final int getColor(int id) { return resources.fakeColor(id); }

    public SharedPreferences getSharedPreferences(String name, int mode) {
        return FakePreferences.of(new File(folder, name));
    }

    public ContentResolver getContentResolver() { return new ContentResolver(); }
}
