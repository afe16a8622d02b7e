package android.view;

public interface Menu {
    MenuItem add(int group, int id, int order, int title);
}
